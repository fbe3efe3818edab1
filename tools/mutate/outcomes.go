package main

var outcomes = []promise{
	{"Outcomes: the schedule decides, and each failure counts once", []mutation{
		{
			name: "a failure is not counted", breaks: "a message is retried without end, on the first tier",
			file: "middleware/decide.go", old: "record.Failures++", new: "record.Failures = max(record.Failures, 1)",
			in: "middleware", tests: "TestDecideReturnsTheOutcomeAndTheRecordOfTheCopy",
		},
		{
			name: "one retry more", breaks: "a message has another number of retries than its schedule",
			file: "backoff/schedule.go", old: "failures > len(s) {\n\t\treturn 0, false\n\t}\n\treturn s[failures-1], true",
			new: "failures > len(s)+1 {\n\t\treturn 0, false\n\t}\n\treturn s[min(failures, len(s))-1], true",
			in:  "backoff", tests: "TestDelay",
		},
		{
			name: "permanent errors are retried", breaks: "an error that cannot get better uses up the whole schedule",
			file: "middleware/decide.go", old: `case f.action.Outcome == "" && f.permanent:`, new: "case false:",
			in: "middleware", tests: "TestPermanentFailureIsDeadLetteredAtOnce",
		},
		{
			name: "a joined error is not found", breaks: "backoff.Permanent inside of errors.Join has no effect",
			file: "backoff/errors.go", old: "range wrapper.Unwrap() {", new: "range wrapper.Unwrap()[:0] {",
			in: "backoff", tests: "TestIsPermanent|TestRetryAfterDelay",
		},
		{
			name: "what cannot be read is retried", breaks: "a message that the app cannot read uses up the whole schedule",
			file: "middleware/decide.go", old: "case f.unreadable:", new: "case false:",
			in: "middleware", tests: "TestDecideReturnsTheOutcomeAndTheRecordOfTheCopy|TestMessageThatCannotBeUnmarshaled",
		},
		{
			name: "MaxAge is ignored", breaks: "a message that is too old is retried",
			file: "middleware/decide.go", old: "at.Sub(since) > p.maxAge", new: "at.Sub(since) > 100*p.maxAge",
			in: "middleware", tests: "TestMaxAgeFromTheFirstFailure|TestMaxAgeEndsAMessageThatOnlyWaits",
		},
		{
			name: "MaxAge does not count the wait", breaks: "a message waits although it is too old when its wait is over",
			file: "middleware/decide.go", old: "p.tooOld(s, &d.record, now.Add(delay))", new: "p.tooOld(s, &d.record, now)",
			in: "middleware", tests: "TestMaxAgeFromTheFirstFailure|TestDecideReturnsTheOutcomeAndTheRecordOfTheCopy",
		},
		{
			name: "jitter is ignored", breaks: "messages that failed together come back together",
			file: "middleware/retry.go", old: "s.chance = rand.Float64()", new: "s.chance = 0 * rand.Float64()",
			in: "middleware", tests: "TestFailuresAreSpreadOverAllLanes",
		},
		{
			name: "the last rule wins", breaks: "a general rule behind a special one decides",
			file: "middleware/rules.go", old: "for i := range t.config.Policy.Rules {", new: "for i := len(t.config.Policy.Rules) - 1; i >= 0; i-- {",
			in: "middleware", tests: "Example|TestEachActionWithEachMatch|TestRule",
		},
		{
			name: "a snooze counts", breaks: "a rate limit uses up the retries of a message",
			file: "middleware/decide.go", old: "case retry.Snoozed:\n\t\trecord.Snoozes++", new: "case retry.Snoozed:\n\t\trecord.Failures++",
			in: "middleware", tests: "TestEachActionWithEachMatch",
		},
		{
			name: "a panic of a rule matches", breaks: "a rule that panics discards messages",
			file: "middleware/rules.go", old: "the rule does not match\", panicked, nil)", new: "the rule does not match\", panicked, nil)\n\t\tmatched = true",
			in: "middleware", tests: "TestPanicInIfCountsAsNoMatch",
		},
	}},
	{"Outcomes: the copy is the message as it was received, with its record, and the record stays on its topic",
		[]mutation{
			{
				name: "the copy has the handler's changes", breaks: "a handler that changes its message is retried with the change",
				file: "middleware/hold.go", old: "maps.Copy(letter.Metadata, in.metadata)", new: "maps.Copy(letter.Metadata, in.msg.Metadata)",
				in: "middleware", tests: "TestCopyIsEqualToTheReceivedMessage",
			},
			{
				name: "a record of another topic counts", breaks: "a message that was passed on has fewer retries at its next handler",
				file: "middleware/delivery.go", old: "if !found || record.Topic != topic {",
				new: "if !found {",
				in:  "middleware", tests: "TestRecordOfAnotherOriginIsIgnored",
			},
			{
				name: "produced messages carry the record", breaks: "what a retried handler produces counts failures of another topic",
				file: "middleware/retry.go", old: "removeRecord(produced, in.metadata)", new: "_ = produced",
				in: "middleware", tests: "TestRecordIsNotPassedToTheNextTopic",
			},
			{
				name: "a field of the record is not written", breaks: "MaxAge begins again with each failure",
				file: "retry/record.go", old: "set(FirstFailedAtKey, formatTime(r.FirstFailedAt))", new: "set(FirstFailedAtKey, formatTime(r.LastFailedAt))",
				in: "middleware", tests: "TestReadRecordReadsEveryFieldThatWriteWrites",
			},
			{
				name: "a field of the record is not carried", breaks: "the number of snoozes is lost on the broker",
				file: "internal/rabbitmq/headers/fold.go", old: "return 12\n", new: "return 11\n",
				in: "internal/rabbitmq/headers", tests: "TestEveryFieldIsFolded|TestEveryRecordKeySurvivesAndCanBeCut",
			},
			{
				name: "headers lose their type", breaks: "a header that is a number comes back as a text",
				file: "internal/rabbitmq/headers/properties.go", old: "p.Headers[h.key] = h.value", new: "p.Headers[h.key] = fmt.Sprint(h.value)",
				in: "config", tests: "TestForeignMessageSurvivesRetries|TestRecordAndHeadersSurviveAnyMarshaler",
			},
			{
				name: "the exchange is forgotten", breaks: "the app's marshaler sees the library's exchange in place of the app's after a retry",
				file: "internal/rabbitmq/headers/properties.go", old: "header(exchangeHeader, p.Exchange)", new: `header(exchangeHeader, "")`,
				in: "config", tests: "TestForeignMessageSurvivesRetries|TestAppMarshalerGetsTheFirstDelivery",
			},
			{
				name: "forged headers are believed", breaks: "any publisher can make a message look as if it came from another exchange",
				file: "internal/rabbitmq/headers/marshaler.go", old: "return exchange == returns || exchange == retries || prefix.IsReturn(exchange)", new: "return exchange != returns || exchange != retries",
				in: "config", tests: "TestForgedHeadersAreIgnored",
			},
			{
				name: "a secret is not redacted", breaks: "the text of an error is in the record and the log as it is",
				file: "middleware/failure.go", old: "_ = call(func() { reason = t.config.Policy.RedactReason(text, err) })", new: "reason = text",
				in: "middleware", tests: "TestRedactedSecretsAreInNoRecordAndNoLog",
			},
			{
				name: "a reason is not cut", breaks: "an error with a large text makes its message too large for a tier",
				file: "middleware/failure.go", old: "\t\ttext = text[:bytes]\n", new: "",
				in: "middleware", tests: "TestReasonIsAtMost1KiBOfValidUTF8",
			},
			{
				name: "an observer misses an outcome", breaks: "metrics count no retries",
				file: "middleware/settle.go", old: "t.log(in, &d, to, f)\n\t\t\tt.report(in, &d, to, f, cause)", new: "t.log(in, &d, to, f)",
				in: "middleware", tests: "TestObserverSeesEachOutcome",
			},
			{
				name: "a success allocates", breaks: "the middleware costs an allocation for each message that does not fail",
				file: "middleware/retry.go", old: "in.calling = true\n\tpanicked", new: "in.calling = true\n\t_ = t.fields(in)\n\tpanicked",
				in: "middleware", tests: "TestSuccessDoesNotAllocate",
			},
		}},
	{"Outages: a breaker pauses the handler, probes with one message, and goes on step by step", []mutation{
		{
			name: "the breaker never opens", breaks: "an outage uses up the retries of all messages",
			file: "middleware/breaker_machine.go", old: "float64(failures) >= m.config.Ratio*float64(outcomes)", new: "float64(failures) > 2*float64(outcomes)",
			in: "middleware", tests: "TestBreakerPausesAtItsRatio",
		},
		{
			name: "the breaker never closes", breaks: "a handler keeps a limit after an outage",
			file: "middleware/breaker_machine.go", old: "m.next(going)\n", new: "m.places = end\n",
			in: "middleware", tests: "TestHandlerGoesOnStepByStep",
		},
		{
			name: "the pause does not double", breaks: "a long outage is probed as often as a short one",
			file: "middleware/breaker_machine.go", old: "m.pause = min(2*m.pause, m.config.MaxPause)", new: "m.pause = min(m.pause, m.config.MaxPause)",
			in: "middleware", tests: "TestPauseDoublesUpToMaxPause",
		},
		{
			name: "many messages probe", breaks: "each probe of an outage fails 16 messages",
			file: "middleware/breaker_machine.go", old: "m.places, m.step, m.moved = 1, step{}, now", new: "m.places, m.step, m.moved = 16, step{}, now",
			in: "middleware", tests: "TestHandlerGoesOnStepByStep",
		},
		{
			name: "a failed probe counts", breaks: "the probes of an outage use up the retries of their messages",
			file: "middleware/decide.go", old: "if s.probe && f.retried() {", new: "if false {",
			in: "middleware", tests: "TestFailureOfAProbeDoesNotCount",
		},
		{
			name: "old outcomes count", breaks: "failures of an hour ago pause a handler",
			file: "middleware/breaker_window.go", old: "at-w.outcomes[w.first].at > w.age {", new: "false {",
			in: "middleware", tests: "TestBreakerCountsWithinItsWindow|TestWindowCountsTheLastOutcomes",
		},
		{
			name: "outcomes from before the pause count", breaks: "a message that was in flight at a pause ends it",
			file: "middleware/breaker_machine.go", old: "if of != m.ticket || v == noSign {", new: "if v == noSign {",
			in: "middleware", tests: "TestMessagesInFlightAtAPauseSayNothing",
		},
	}},
}
