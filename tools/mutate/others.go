package main

var others = []promise{
	{"Other Pub/Subs: the relay promises the same", []mutation{
		{
			name: "the relay returns early", breaks: "a retry comes back at once",
			file: "relay/forward.go", old: "case now.Before(dueAt(w.record)):", new: "case false:",
			in: "relay", tests: "TestMessageIsDeadLetteredAfterItsSchedule",
		},
		{
			name:   "the relay acks what it has not published",
			breaks: "a message whose return topic cannot be published to is lost",
			file:   "relay/pump.go",
			old:    "if err != nil {\n\t\treturn p.later(w, time.Now(), err)",
			new:    "if err != nil && false {\n\t\treturn p.later(w, time.Now(), err)",
			in:     "relay", tests: "TestPublishThatFailsIsTriedAgain",
		},
		{
			name: "a shutdown of the relay acks what waits", breaks: "each restart loses the messages that wait",
			file: "relay/pump.go", old: "p.take().msg.Nack()", new: "p.take().msg.Ack()",
			in: "relay", tests: "TestShutdownGivesWaitingMessagesBackAtOnce",
		},
		{
			name:   "a handler subscribes twice",
			breaks: "each failure of a handler with two subscriptions doubles its messages",
			file:   "relay/handler.go", old: "other != nil && other() {", new: "other != nil && false {",
			in: "relay", tests: "TestHandlerThatIsSubscribedTwiceIsRefused",
		},
		{
			name: "the order of due times is lost", breaks: "a message waits behind one that is due later",
			file: "relay/queue.go", old: "return a.until.Before(b.until)", new: "return b.until.Before(a.until)",
			in: "relay", tests: "TestMessagesAreForwardedInTheOrderOfTheirDueTimes",
		},
		{
			name:   "a message is held beyond its hop",
			breaks: "the backend redelivers a message that waits, and its copy is a duplicate",
			file:   "relay/hop.go", old: "hops := (tier-1)/maxHop + 1", new: "hops := (tier-1)/maxHop*0 + 1",
			in: "relay", tests: "TestMessageIsNotHeldBeyondItsHop|TestHopOfASubscriber",
		},
		{
			name: "a letter that is not published is removed", breaks: "a redrive on another backend loses letters",
			file: "letters/relayletters/run.go",
			old:  "return i.store.config.Publisher.Publish(target, msg)",
			new:  "_ = i.store.config.Publisher.Publish(target, msg)\n\t\treturn nil",
			in:   "letters/relayletters", tests: "TestLettersFailures",
		},
		{
			name:   "a foreign message is dropped",
			breaks: "a message on a tier that the middleware has not published is lost",
			file:   "relay/forward.go",
			old:    "return TopicParams{Kind: DeadLetterTopic, Handler: UnknownHandler}, metadata",
			new:    "return TopicParams{Kind: ReturnTopic, Handler: UnknownHandler}, metadata",
			in:     "relay", tests: "TestGarbledMessagesOnATier",
		},
	}},
	{"The test kit: an assertion that does not hold fails the test", []mutation{
		{
			name:   "a wrong outcome passes",
			breaks: "a test of an app passes although the message was not dead-lettered",
			file:   "retrytest/story.go",
			old:    "got := s.lastOutcome(); got != want {",
			new:    "got := s.lastOutcome(); got == \"\" {",
			in:     "retrytest", tests: "TestDeadLetteredFailsForAProcessedMessage",
		},
		{
			name: "a late retry passes", breaks: "a test of an app passes although a retry came hours late",
			file: "retrytest/story.go", old: "|| got[i] > want[i]+lateness[i] {", new: "{",
			in: "retrytest", tests: "TestFailedAssertionPrintsTheStory|TestAssertionsWithJitterFindFaults",
		},
		{
			name: "a nacked message was not retried", breaks: "NeverRetried passes for a message that came again",
			file: "retrytest/story.go", old: "again := a.again() || a.nacked", new: "again := a.again()",
			in: "retrytest", tests: "TestNeverRetriedFailsForANackedMessage",
		},
		{
			name: "a simulation is short", breaks: "the times that Simulate shows are not those of the schedule",
			file: "retrytest/simulate.go", old: "s.DeadLetterAt += wait", new: "s.DeadLetterAt = wait",
			in: "retrytest", tests: "TestSimulateComputesEveryRetry",
		},
	}},
}
