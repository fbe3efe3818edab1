package main

var connects = []promise{
	{"What Connect adds: the app's own messages are confirmed, and a produced message that cannot be published is a " +
		"failure", []mutation{
		{
			name:   "what is not published is not retried",
			breaks: "a message whose produced message cannot be published comes back at once, uncounted",
			file:   "rabbitmq/handler.go", old: "if !delivery.Processed() {", new: "if true {",
			in: "integration/connect", tests: "TestProducedMessageThatCannotBePublishedIsAFailure",
		},
		{
			name:   "the app's deleted exchange stays deleted",
			breaks: "publishers fail until a subscriber declares the exchange again",
			file:   "rabbitmq/app_publisher.go",
			old:    "failures[i] = s.exchanges.ExchangeAgain(&m, err, s.core.app.DeclareExchange); failures[i] == nil {",
			new:    "false {",
			in:     "integration/connect", tests: "TestPublisherOfExchanges",
		},
		{
			name:   "the app's exchange is not declared",
			breaks: "the first publish to an exchange fails until a subscriber has declared it",
			file:   "rabbitmq/app_publisher.go",
			old:    "if !c.verifyOnly {\n\t\ts.exchanges",
			new:    "if false {\n\t\ts.exchanges",
			in:     "integration/connect", tests: "TestPublisherOfExchanges",
		},
		{
			name:   "the app's messages are transient",
			breaks: "a restart of the broker deletes messages that the app has published",
			file:   "internal/rabbitmq/publisher/send.go", old: "if m.Publishing.DeliveryMode == 0 {",
			new: "if false {",
			in:  "integration/publisher", tests: "TestAMessageWithoutADeliveryModeIsPersistent",
		},
		{
			name:   "neighbours of a bad message fail",
			breaks: "one message that the broker refuses fails the others in flight",
			file:   "internal/rabbitmq/publisher/call.go", old: "case !alone:\n\t\treturn errChannelClosed\n", new: "",
			in: "integration/publisher", tests: "TestOnlyTheMessageThatClosesTheChannelIsRefused",
		},
		{
			name: "a closed publisher publishes", breaks: "Close does not wait for what is published after it",
			file: "internal/users/users.go", old: "\treturn !c.closed\n}", new: "\treturn true\n}",
			in: "integration/publisher", tests: "TestCloseOfASharedConnectionUnderLoad|TestCloseUnderLoad",
		},
	}},
	{"What Connect adds: a nack is paced", []mutation{
		{
			name: "the pause of a nack does not double", breaks: "a message that is nacked comes back every 10 ms",
			file: "internal/rabbitmq/subscriber/nack.go", old: "return initial << count", new: "return initial",
			in: "internal/rabbitmq/subscriber", tests: "TestPauseOfANack",
		},
		{
			name: "the pause has no bound", breaks: "a message that is nacked often waits for hours",
			file: "internal/rabbitmq/subscriber/nack.go", old: "|| initial<<count > longest {", new: "{",
			in: "internal/rabbitmq/subscriber", tests: "TestPauseOfANack",
		},
		{
			name: "a nack is not counted", breaks: "on a classic queue each nack has the shortest pause",
			file: "internal/rabbitmq/subscriber/nack.go", old: "c.by[id] = before + 1", new: "c.by[id] = before",
			in: "internal/rabbitmq/subscriber", tests: "TestNacksAreCountedForEachMessage",
		},
	}},
	{"What Connect adds: concurrency is a bound, an order key holds, a pause and a shutdown lose nothing", []mutation{
		{
			name:   "concurrency is not bounded",
			breaks: "after a reconnect a handler has more messages in flight than its Concurrency",
			file:   "internal/rabbitmq/subscriber/limit.go", old: "if e.taken < e.bound {", new: "if true {",
			in: "integration/subscriber", tests: "TestALimitBoundsTheMessagesInFlight",
		},
		{
			name: "an order key is ignored", breaks: "two messages of one key are handled at the same time",
			file: "internal/rabbitmq/subscriber/feed.go", old: "if busy {", new: "if busy && false {",
			in: "integration/subscriber", tests: "TestMessagesOfOneKeyKeepTheOrderOfTheQueue",
		},
		{
			name: "a paused handler takes messages", breaks: "Pause of an operator has no effect",
			file: "internal/rabbitmq/subscriber/limit.go",
			old:  "if bound == 0 {\n\t\ts.era = nil\n\t\treturn nil",
			new:  "if bound == 0 {\n\t\tbound = 1",
			in:   "integration/subscriber", tests: "TestAPauseGivesBackWhatWasNotHandedOut",
		},
		{
			name:   "a pause sends acks",
			breaks: "acks during a pause bring further messages, which are counted when they go back",
			file:   "internal/rabbitmq/subscriber/settler.go", old: "if !holding || s.quiet {", new: "if true {",
			in: "internal/rabbitmq/subscriber", tests: "TestAPauseHoldsAcksAndNacksBack",
		},
		{
			name: "the largest limit wins", breaks: "a breaker's pause is ended by another reason with a higher limit",
			file: "internal/gate/gate.go", old: "|| l < effective {", new: "|| l > effective {",
			in: "internal/gate", tests: "TestTheSmallestLimitIsTheEffectiveOne",
		},
		{
			name:   "a shutdown gives handlers no time",
			breaks: "each shutdown ends the contexts of running handlers at once",
			file:   "internal/rabbitmq/subscriber/subscription.go",
			old:    "contexts := time.AfterFunc(s.config.CloseTimeout,",
			new:    "contexts := time.AfterFunc(0,",
			in:     "integration/subscriber", tests: "TestAShutdownLosesAndCountsNothingMore",
		},
		{
			name:   "a shutdown counts failures",
			breaks: "a message that fails because its context ended has used up a retry",
			file:   "middleware/decide.go",
			old:    "case s.ended && (failed || !s.called),",
			new:    "case s.ended && !s.called,",
			in:     "middleware", tests: "TestFailureAtShutdownIsGivenBack",
		},
	}},
	{"What Connect adds: options of one handler do not change another, and what a handler leaves out is the " +
		"connection's", []mutation{
		{
			name:   "a handler's policy is ignored",
			breaks: "a handler with a Policy of its own is retried by the connection's",
			file:   "internal/options/options.go", old: "if options.Policy == nil {", new: "if connection != nil {",
			in: "retrytest", tests: "TestHandlersHavePoliciesOfTheirOwn",
		},
		{
			name: "a policy is not inherited", breaks: "a handler without a Policy does not have the connection's",
			file: "internal/options/options.go",
			old:  "options.Policy = connection",
			new:  "options.Policy = &retry.Policy{}",
			in:   "internal/options", tests: "TestOneOptions",
		},
		{
			name: "a key without its tier", breaks: "a copy goes to no tier, or to that of another delay",
			file: "rabbitmq/copies.go",
			old:  "to.key, to.queue = naming.RetryKey(work, to.tier),",
			new:  "to.key, to.queue = work,",
			in:   "rabbitmq", tests: "TestPlacesOfCopies",
		},
	}},
}
