package main

var guarantees = []promise{
	{"No loss: a message is acknowledged only after the broker has routed and confirmed its copy", []mutation{
		{
			name: "ack before the confirm", breaks: "a message whose copy could not be published is acked, and is lost",
			file: "middleware/hold.go", old: "if err == nil {\n\t\t\treturn to, notRefused, nil", new: "if true {\n\t\t\treturn to, notRefused, nil",
			in: "middleware", tests: "TestMessageIsHeldUntilItsCopyIsPublished",
		},
		{
			name: "copies are not mandatory", breaks: "a copy that no queue gets is confirmed, so the message is acked and lost",
			file: "internal/rabbitmq/publisher/session.go", old: "r.routingKey, true, false", new: "r.routingKey, false, false",
			in: "integration/publisher", tests: "TestUnroutable|TestEveryThirdMessageIsUnroutable",
		},
		{
			name: "a return is ignored", breaks: "a message that the broker returns as unroutable counts as published",
			file: "internal/rabbitmq/publisher/call.go", old: "s.claim(r.id); found {", new: "s.claim(r.id); found && returned == nil {",
			in: "integration/publisher", tests: "TestUnroutable|TestEveryThirdMessageIsUnroutable",
		},
		{
			name: "a nack counts as a confirm", breaks: "a message that a full queue rejects counts as published",
			file: "internal/rabbitmq/publisher/call.go", old: "if r.confirm.Acked() {", new: "if true {",
			in: "integration/publisher", tests: "TestNacked",
		},
		{
			name: "an ack covers running handlers", breaks: "an ack of several deliveries also acks one whose handler still runs",
			file: "internal/rabbitmq/subscriber/settler.go", old: "for len(acks) > 0 && acks[0] == s.sent.low {", new: "for len(acks) > 0 {",
			in: "internal/rabbitmq/subscriber", tests: "TestEachDeliveryIsSettledAsItsHandlerDid",
		},
		{
			name: "a nack does not requeue", breaks: "a message that is given back is dropped or dead-lettered",
			file: "internal/rabbitmq/subscriber/settler.go", old: "s.channel.Nack(tag, false, true)", new: "s.channel.Nack(tag, false, false)",
			in: "internal/rabbitmq/subscriber", tests: "TestEachDeliveryIsSettledAsItsHandlerDid",
		},
		{
			name: "a lost ack is not reported", breaks: "an ack after the end of its channel looks as if it was sent",
			file: "internal/rabbitmq/subscriber/settler.go", old: "s.mu.Unlock()\n\t\treturn false", new: "s.mu.Unlock()\n\t\treturn true",
			in: "internal/rabbitmq/subscriber", tests: "TestALostChannelTakesNothing",
		},
		{
			name: "the end of a goroutine settles nothing", breaks: "a message whose handler ends its goroutine is never settled",
			file: "middleware/retry.go", old: "if in.finished {\n\t\t\tin.leave()", new: "if true {\n\t\t\tin.leave()",
			in: "middleware", tests: "TestMessageIsSettledAfterGoexitOfTheHandler",
		},
		{
			name: "a panic escapes", breaks: "a handler that panics ends the process",
			file: "middleware/retry.go", old: "panicked := call(func() { produced, err = h(msg) })",
			new: "var panicked error\n\tproduced, err = h(msg)",
			in:  "middleware", tests: "TestPanicIsAFailureWithItsFileAndLine",
		},
	}},
	{"No loss: tiers are durable quorum queues that forward expired messages at least once", []mutation{
		{
			name: "tiers forward at most once", breaks: "a message that expires while the broker dies is lost",
			file: "rabbitmq/topology/new.go", old: "arguments[argument.DeadLetterStrategy] = argument.AtLeastOnce",
			new: `arguments[argument.DeadLetterStrategy] = "at-most-once"`,
			in:  "rabbitmq/topology", tests: "TestTopologyIsPlainData",
		},
		{
			name: "full tiers drop", breaks: "a tier with a length limit drops its oldest message without an error",
			file: "rabbitmq/topology/new.go", old: "arguments[argument.Overflow] = argument.RejectPublish\n\t\targuments[argument.QueueLeader",
			new: "arguments[argument.QueueLeader",
			in:  "rabbitmq/topology", tests: "TestTopologyIsPlainData",
		},
		{
			name: "tiers are not durable", breaks: "a restart of the broker deletes what waits",
			file: "rabbitmq/topology/new.go", old: "n.TierQueue(work, tier), Durable: true", new: "n.TierQueue(work, tier), Durable: false",
			in: "rabbitmq/topology", tests: "TestTopologyIsPlainData",
		},
		{
			name: "dead letters have the default limit", breaks: "RabbitMQ 4 drops a dead letter that was looked at 20 times",
			file: "rabbitmq/topology/new.go", old: "arguments[argument.DeliveryLimit] = unlimited", new: "arguments[argument.DeliveryLimit] = int64(20)",
			in: "rabbitmq/topology", tests: "TestTopologyIsPlainData",
		},
		{
			name: "copies are transient", breaks: "a restart of the broker deletes copies on classic tiers",
			file: "internal/rabbitmq/headers/properties.go", old: "publishing.DeliveryMode = amqp091.Persistent", new: "publishing.DeliveryMode = amqp091.Transient",
			in: "config", tests: "TestForeignMessageSurvivesRetries",
		},
	}},
	{"No loss: while the broker is away the message is held, up to MaxHold", []mutation{
		{
			name: "no hold", breaks: "a message whose copy cannot be published is nacked at once, again and again, up to the delivery limit",
			file: "middleware/settle.go", old: "time.Now().Add(t.config.Policy.MaxHold)", new: "time.Now()",
			in: "middleware", tests: "TestMessageIsHeldUntilItsCopyIsPublished",
		},
		{
			name: "MaxHold is ignored", breaks: "a message is held without end",
			file: "middleware/settle.go", old: "time.Now().Add(t.config.Policy.MaxHold)", new: "time.Now().Add(100 * t.config.Policy.MaxHold)",
			in: "middleware", tests: "TestMaxHoldEndsTheHoldWithBothErrors",
		},
		{
			name: "a shutdown does not end the hold", breaks: "a shutdown waits until MaxHold is over",
			file: "middleware/delivery.go", old: "if d.shuttingDown() {\n\t\t\t\treturn false", new: "if d.shuttingDown() {\n\t\t\t\tcontinue",
			in: "middleware", tests: "TestShutdownEndsTheHold$",
		},
		{
			name: "a closed publisher is tried again", breaks: "a message is held although no copy can be published any more",
			file: "middleware/hold.go", old: "return closedPublisher", new: "return notRefused",
			in: "middleware", tests: "TestClosedPublisherGivesBackAtOnce",
		},
		{
			name: "held messages do not pause the handler", breaks: "in an outage the handler takes messages until all of its places hold one",
			file: "internal/gate/gate.go", old: "if g.concurrency > 0 && 2*g.held >= g.concurrency {", new: "if false {",
			in: "internal/gate", tests: "TestHoldPausesAtHalfAndResumesAtAQuarter",
		},
		{
			name: "a blocked broker is published to", breaks: "in an alarm of the broker each failure waits for the deadline in place of an error at once",
			file: "internal/rabbitmq/publisher/send.go", old: "case state.Connection.Blocked.Load():\n\t\treturn nil, m.Failure(publish.ErrBlocked, nil)", new: "case false:",
			in: "integration/publisher", tests: "TestBlockedConnection",
		},
		{
			name: "the publisher does not reconnect", breaks: "after one lost connection every failure is held until the app restarts",
			file: "internal/rabbitmq/wire/link.go", old: `l.logger.Error("Connection lost, reconnecting", cause, nil)`, new: "return",
			in: "integration/publisher", tests: "TestLostConnection",
		},
	}},
	{"No loss: what is deleted while the app runs", []mutation{
		{
			name: "a deleted tier is not declared again", breaks: "after the deletion of a tier, failures are held until a restart",
			file: "rabbitmq/copies.go", old: "if p.queues == nil ||", new: "if true ||",
			in: "integration/connect", tests: "TestDeletedTiersAreDeclaredAgain",
		},
		{
			name: "a deleted tier of a group is not declared again", breaks: "after the deletion of a group's tier, failures of all its queues are held",
			file: "rabbitmq/core.go", old: "err := t.Redeclare(channel)\n\tif err == nil {", new: "var err error\n\tif err == nil {",
			in: "integration/declare", tests: "TestATierOfAGroupIsDeleted",
		},
		{
			name: "a deleted return exchange is not declared again", breaks: "what is due waits on its tier until a restart",
			file: "rabbitmq/returns.go", old: `if err == nil && missing != "" {`, new: `if err == nil && missing == "none" {`,
			in: "integration/declare", tests: "TestAReturnExchangeIsDeleted",
		},
		{
			name: "a lost binding is not restored", breaks: "what comes back to a work queue without its bindings goes to the orphans until a restart",
			file: "rabbitmq/returns.go", old: "bindAll(channel, lasting) })", new: "bindAll(channel, nil) })",
			in: "integration/declare", tests: "TestTheReturnBindingIsRemoved",
		},
		{
			name: "bindings are restored too often", breaks: "many queues bind so often that the broker is busy with it",
			file: "internal/rota/rota.go", old: "least = time.Second", new: "least = time.Millisecond",
			in: "internal/rota", tests: "TestTheLoadIsConstant",
		},
		{
			name: "a retired tier cannot come back", breaks: "a message on a tier that has left the schedule does not come back to its work queue",
			file: "rabbitmq/topology/new.go", old: "t.Bindings = append(t.Bindings, Binding{Exchange: n.AnyReturnExchange(), Queue: work, Key: " +
				"naming.AnyReturnKey(work)})\n\tfor", new: "for",
			in: "rabbitmq/topology", tests: "TestTopologyIsPlainData",
		},
		{
			name: "orphans are dropped", breaks: "a message whose work queue is gone is lost when its delay is over",
			file: "rabbitmq/topology/new.go", old: ", Arguments: alternate(n.Orphans())}", new: "}",
			in: "rabbitmq/topology", tests: "TestTopologyIsPlainData",
		},
		{
			name: "the consumer is not begun again", breaks: "a handler gets no message after its queue was deleted or its connection was lost",
			file: "internal/rabbitmq/subscriber/subscription.go", old: "current = s.reopen(ctx, pause.Next())", new: "current = nil",
			in: "integration/subscriber", tests: "TestTheQueueIsDeletedUnderTheConsumer",
		},
		{
			name: "what was declared is believed for ever", breaks: "a work queue that is replaced by another client gets no bindings",
			file: "rabbitmq/declare.go", old: "return q.begin.After(lostAt) && q.hasQueues", new: "return q.hasQueues",
			in: "integration/declare", tests: "TestTheWorkQueueIsReplacedWhileItIsConsumed",
		},
	}},
	{"Never early: a retry comes back no earlier than its delay", []mutation{
		{
			name: "a tier is shorter than its delay", breaks: "each retry comes early",
			file: "rabbitmq/topology/new.go", old: "argument.MessageTTL:         after.Milliseconds()",
			new: "argument.MessageTTL:         after.Milliseconds() - 1",
			in:  "rabbitmq/topology", tests: "TestTopologyIsPlainData",
		},
		{
			name: "a wait is rounded down", breaks: "a requested delay with a fraction of a millisecond ends early",
			file: "middleware/decide.go", old: "wait = (wait + time.Millisecond - 1).Truncate(time.Millisecond)",
			new: "wait = wait.Truncate(time.Millisecond)",
			in:  "middleware", tests: "TestRequestedDelay",
		},
		{
			name: "the rest of a delay is lost", breaks: "a requested delay ends after its first tier",
			file: "middleware/decide.go", old: "d.record.Remaining, d.record.DueAt = rest,", new: "d.record.Remaining, d.record.DueAt = 0*rest,",
			in: "middleware", tests: "TestMessageIsParkedForWhatRemains|TestRequestedDelayIsWaitedForOnTheTiers",
		},
		{
			name: "the handler is called before the rest is over", breaks: "a message that is parked is handled at once",
			file: "middleware/decide.go", old: "case wait <= 0:", new: "case true:",
			in: "middleware", tests: "TestMessageIsParkedForWhatRemains",
		},
		{
			name: "jitter shortens a delay", breaks: "a retry with Jitter comes earlier than its schedule says",
			file: "backoff/lanes.go", old: "lane := delay + time.Duration(", new: "lane := delay - time.Duration(",
			in: "backoff", tests: "TestLanesAreOnlyEverLonger",
		},
		{
			name: "the delay keys are early", breaks: "a Pub/Sub that delays by Watermill's delay keys delivers early",
			file: "retry/record.go", old: "r.DueAt.Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)", new: "r.DueAt.Truncate(time.Second)",
			in: "middleware", tests: "TestDelayKeysAreNeverEarlierThanTheDueTime",
		},
		{
			name: "delayed messages are handled at once", breaks: "a message that Watermill's delay package has delayed is handled when it arrives",
			file: "rabbitmq/core.go", old: "DelayArrivals: true,", new: "DelayArrivals: false,",
			in: "integration/connect", tests: "TestDelayedMessages",
		},
	}},
	{"Duplicates: without a fault no message comes twice", []mutation{
		{
			name: "an unconfirmed copy is published again at once", breaks: "a slow broker gets duplicates without a pause",
			file: "middleware/hold.go", old: "if refused == unconfirmed || refused.forGood() {\n\t\t\twait", new: "if refused.forGood() {\n\t\t\twait",
			in: "middleware", tests: "TestTierThatDoesNotConfirmIsReplacedAfterAMinute",
		},
		{
			name: "a shutdown interrupts a publish", breaks: "each shutdown leaves copies whose confirm is not awaited: duplicates",
			file: "middleware/hold.go", old: "context.WithTimeout(context.WithoutCancel(in.seen()), ", new: "context.WithTimeout(in.seen(), ",
			in: "middleware", tests: "TestShutdownDoesNotInterruptAPublish",
		},
		{
			name: "nacks before the end of the consumer", breaks: "a shutdown delivers messages once more to the consumer that stops",
			file: "internal/rabbitmq/subscriber/settler.go", old: "if !s.ended && (s.holding || s.isStopping()) {", new: "if !s.ended && s.holding {",
			in: "internal/rabbitmq/subscriber", tests: "TestNacksAreHeldBackUntilTheConsumerHasEnded",
		},
		{
			name: "an unsent message counts as sent", breaks: "a copy that was never written is treated as a possible duplicate, and waits a minute",
			file: "rabbitmq/publish/errors.go", old: "return !e.Unsent", new: "return true",
			in: "internal/rabbitmq/publisher", tests: "TestOnlyAMessageThatWasWrittenIsUnconfirmed",
		},
		{
			name: "the relay forwards what the backend takes back", breaks: "the backend delivers the message again, and its copy is a duplicate",
			file: "relay/pump.go", old: "if w.msg.Context().Err() != nil {", new: "if false {",
			in: "relay", tests: "TestCancelledDeliveryIsNotForwarded",
		},
	}},
	{"Late after a crash: a work queue that takes no messages delays no other, and the delay is shown", []mutation{
		{
			name: "a work queue gets messages of others", breaks: "queue billing also gets the retries of sales.billing",
			file: "internal/rabbitmq/naming/naming.go", old: `return "*." + queue`, new: `return "#." + queue`,
			in: "integration/retry", tests: "TestQueuesWithTheSameSuffixStayApart",
		},
		{
			name: "a full queue of a group has no inbox", breaks: "a work queue that is full stops the retries of its whole group",
			file: "rabbitmq/topology/new.go", old: `case reason == "":`, new: "case true:",
			in: "rabbitmq/topology", tests: "TestInboxOfAGroup",
		},
		{
			name: "overdue tiers are not shown", breaks: "nothing tells an operator that messages cannot come back",
			file: "rabbitmq/overdue.go", old: "if now.intervals >= overdueIntervals {", new: "if false {",
			in: "rabbitmq", tests: "TestOverdue$",
		},
		{
			name: "overdue tiers are shown at once", breaks: "each message that is just expiring is an alarm",
			file: "rabbitmq/overdue.go", old: "overdueIntervals = 2", new: "overdueIntervals = 0",
			in: "rabbitmq", tests: "TestOverdue$",
		},
	}},
	{"A single node that is killed: failures for a tier that takes none are held, or wait on another tier", []mutation{
		{
			name: "a tier that refuses is not replaced", breaks: "a message whose tier is full is held, although other tiers have room",
			file: "middleware/hold.go", old: "return tierRefused\n", new: "return notRefused\n",
			in: "middleware", tests: "TestTierThatRefusesIsReplacedAtOnce",
		},
		{
			name: "a tier that does not confirm is not replaced", breaks: "a message waits for a tier that never confirms",
			file: "middleware/hold.go", old: "case refused == unconfirmed && d.outcome != retry.DeadLettered:", new: "case false:",
			in: "middleware", tests: "TestTierThatDoesNotConfirmIsReplacedAfterAMinute",
		},
		{
			name: "a stuck channel is kept", breaks: "a queue that never confirms takes all places of the publisher",
			file: "internal/rabbitmq/publisher/session.go", old: "if 2*s.abandoned.Load() > int64(s.maxInFlight) &&", new: "if false &&",
			in: "internal/rabbitmq/publisher", tests: "TestAbandonedMessagesDoNotHoldTheirSlotsForEver",
		},
	}},
	{"At the frame limit: the record is shortened, never the message, and no copy closes its reader's connection",
		[]mutation{
			{
				name: "the count is cut", breaks: "a message with large headers is retried without end",
				file: "internal/rabbitmq/headers/frame.go", old: "if !dead && (key", new: `if !dead && key == "" && (key`,
				in: "internal/rabbitmq/headers", tests: "TestShrinkCutsTheRecordAndNotTheMessage",
			},
			{
				name: "no room for the counts of a dead letter", breaks: "a dead letter of many headers cannot be read by a Go client",
				file: "internal/rabbitmq/publisher/send.go", old: "n, most := len(r.publishing.Headers), maxElements-room.Headers", new: "n, most := len(r.publishing.Headers), maxElements",
				in: "internal/rabbitmq/publisher", tests: "TestThousandsOfHeadersLeaveRoom",
			},
			{
				name: "no room for x-death", breaks: "a copy that fills the frame closes the connection of each consumer when it comes back",
				file: "internal/rabbitmq/headers/frame.go", old: "Bytes: 512 + 8*names}", new: "Bytes: 0 * names}",
				in: "integration/hostile", tests: "TestCopyThatFillsTheFrameComesBack",
			},
			{
				name: "too large is held", breaks: "a message that is too large for a tier is held, and not dead-lettered at its first failure",
				file: "middleware/hold.go", old: "return tooLarge\n", new: "return notRefused\n",
				in: "middleware", tests: "TestMessageThatIsTooLargeForATierIsDeadLetteredAtOnce",
			},
		}},
	{"Not promised: a forged record is believed, within its bounds", []mutation{
		{
			name: "a garbled record is believed", breaks: "a negative count gives a message more retries than its schedule",
			file: "retry/record.go", old: "n >= 0 && n <= most", new: "n <= most",
			in: "middleware", tests: "TestInvalidRecordIsIgnored",
		},
		{
			name: "a forged delay is not cut", breaks: "a stranger makes a message wait for years",
			file: "middleware/decide.go", old: "d.cut, delay = delay, p.maxDelay", new: "d.cut = delay",
			in: "middleware", tests: "TestRequestedDelayIsAtMostMaxDelay",
		},
	}},
}
