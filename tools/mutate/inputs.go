package main

var inputs = []promise{
	{"Bad input is refused with an error that names the value, the bound and what to do", []mutation{
		{
			name: "a delay beyond the broker's bound", breaks: "the broker refuses the tier when the app starts",
			file: "backoff/schedule.go", old: "case delay > MaxDelay:", new: "case false:",
			in: "backoff", tests: "TestValidate",
		},
		{
			name: "a delay with fractions of a millisecond", breaks: "a tier has another delay than the schedule",
			file: "backoff/schedule.go", old: "case delay%time.Millisecond != 0:", new: "case false:",
			in: "backoff", tests: "TestValidate",
		},
		{
			name: "a schedule that overflows", breaks: "a long linear schedule has negative delays",
			file: "backoff/schedule.go", old: "case step > math.MaxInt64/n:\n\t\t\treturn math.MaxInt64\n", new: "",
			in: "backoff", tests: "TestValidate|TestConstructors",
		},
		{
			name: "a rounding error is a millisecond", breaks: "a whole factor gives tiers such as 1001ms",
			file: "backoff/schedule.go", old: "\t\tms = whole\n", new: "",
			in: "backoff", tests: "TestExponentialWholeFactorIsExact|TestConstructors",
		},
		{
			name: "a negative duration", breaks: "a mistyped MaxHold or MaxAge is accepted",
			file: "retry/policy.go", old: "if d.value < 0 {", new: "if false {",
			in: "middleware", tests: "TestValidateReportsAllFaultsAtOnce",
		},
		{
			name: "only the first fault", breaks: "a wrong configuration is corrected one fault at a time",
			file: "middleware/config.go", old: "if err := c.Policy.Validate(); err != nil {", new: "if err := c.Policy.Validate(); err != nil && len(faults) == 0 {",
			in: "middleware", tests: "TestValidateReportsAllFaultsAtOnce",
		},
		{
			name: "a tier that is not declared", breaks: "failures of a schedule without its tiers are held",
			file: "middleware/config.go", old: "if undeclared(tier) {", new: "if false {",
			in: "middleware", tests: "TestTiersThatAreNotDeclaredAreRefused",
		},
		{
			name: "jitter out of bounds", breaks: "a Jitter of 20 in place of 0.2 is accepted",
			file: "retry/policy.go", old: "if !(p.Jitter >= 0 && p.Jitter <= 1) {", new: "if false {",
			in: "middleware", tests: "TestJitterOutOfBoundsIsRefused",
		},
		{
			name: "NoRequeueOnNack", breaks: "each shutdown drops the messages in flight",
			file: "rabbitmq/app.go", old: "if c.Consume.NoRequeueOnNack {", new: "if false {",
			in: "config", tests: "TestRefusals",
		},
		{
			name: "Publish.Immediate", breaks: "RabbitMQ closes the connection at the first publish",
			file: "rabbitmq/connect.go", old: "if c.Immediate {", new: "if false {",
			in: "config", tests: "TestConnectRefuses",
		},
		{
			name: "a prefetch above 65,535", breaks: "a prefetch that does not fit into the protocol is cut",
			file: "rabbitmq/connect.go", old: "count > maxPrefetch {", new: "count > 10*maxPrefetch {",
			in: "config", tests: "TestConnectRefuses",
		},
		{
			name: "a pattern in a queue's name", breaks: "a work queue gets the retries of other queues",
			file: "internal/rabbitmq/naming/naming.go", old: "if hasPatternWord(queue) {", new: "if false {",
			in: "rabbitmq/topology", tests: "TestQueueNamesThatAreRefused",
		},
		{
			name: "a name that is too long", breaks: "the broker refuses the tier of a long queue name",
			file: "internal/rabbitmq/naming/naming.go", old: "if len(name) > maxShortString {", new: "if false {",
			in: "rabbitmq/topology", tests: "TestQueueNamesThatAreRefused",
		},
		{
			name: "a dead-letter queue as a work queue", breaks: "failures of a handler of dead letters fail again without end",
			file: "internal/rabbitmq/naming/naming.go", old: "if p.isOwn(queue) {", new: "if false {",
			in: "rabbitmq/topology", tests: "TestQueueNamesThatAreRefused",
		},
		{
			name: "one work queue for two topics", breaks: "each of two handlers also gets the messages of the other's topic",
			file: "rabbitmq/queues.go", old: "if w.topic != topic {", new: "if false {",
			in: "integration/connect", tests: "TestWrongHandlers|TestWrongSubscriber",
		},
		{
			name: "a queue with other arguments", breaks: "a conflict of arguments is not named",
			file: "internal/rabbitmq/workqueue/inspector.go", old: "err := conflict(app, have)", new: "err := conflict(app, app.Arguments)",
			in: "integration/retry", tests: "TestConflictNamesQueueArgumentAndBothValues",
		},
		{
			name: "publishing is not tried", breaks: "a missing permission to publish shows at the first failure",
			file: "internal/rabbitmq/workqueue/inspector.go", old: "return have, i.probe(b, t)", new: "return have, nil",
			in: "integration/retry", tests: "TestMissingPermissionNamesTheObject|TestDocumentedPermissionsAreTheLeast",
		},
		{
			name: "an unprotected quorum queue", breaks: "RabbitMQ 4.2 drops messages that were requeued 20 times, without a word",
			file: "internal/rabbitmq/workqueue/version.go", old: "return v.atLeast(4, 0) && !v.atLeast(4, 3)", new: "return v.atLeast(4, 0) && !v.atLeast(4, 2)",
			in: "internal/rabbitmq/workqueue", tests: "TestVersionRules",
		},
		{
			name: "a header that is no number", breaks: "NaN in a header closes the channel of all messages in flight",
			file: "internal/rabbitmq/publisher/inspect.go", old: "if math.IsNaN(value) || math.IsInf(value, 0) {", new: "if false {",
			in: "internal/rabbitmq/publisher", tests: "TestInspectRefuses",
		},
		{
			name: "a foreign user-id", breaks: "a user-id of another user closes the channel of all messages in flight",
			file: "internal/rabbitmq/publisher/inspect.go", old: `if p.UserId != "" && l.user != "" &&`, new: "if false &&",
			in: "internal/rabbitmq/publisher", tests: "TestInspectRefuses",
		},
		{
			name: "faults of other handlers", breaks: "a handler consumes although another one of its connection is wrong",
			file: "rabbitmq/handler.go", old: "errors.Join(h.connection.faults.All(), h.add(topic))", new: "errors.Join(nil, h.add(topic))",
			in: "integration/connect", tests: "TestFaultsOfAllHandlers",
		},
		{
			name: "a password in print", breaks: "a configuration that is logged shows the password of the broker",
			file: "config/config.go", old: "c.AMQP.Connection.AmqpURI = rabbitmq.RedactedURI(", new: "_ = rabbitmq.RedactedURI(",
			in: "config", tests: "TestNoPasswordInPrint",
		},
	}},
	{"Wrong wires: a message whose copy would not come back is refused, and its handler is not called", []mutation{
		{
			name: "a wrong source is not refused", breaks: "a copy goes to the tiers of another connection, and does not come back",
			file: "middleware/retry.go", old: "return nil, t.refuse(in)", new: "err = nil",
			in: "middleware", tests: "TestWrongSourceIsRefused",
		},
		{
			name: "another connection is accepted", breaks: "a copy is published to another broker than its message came from",
			file: "middleware/source.go", old: "in.bound != nil && in.bound.Owner == s.Owner", new: "in.bound != nil",
			in: "middleware", tests: "TestWrongSourceIsRefused",
		},
		{
			name: "another builder is accepted", breaks: "a copy goes to a tier that the subscriber's builder has not declared",
			file: "middleware/source.go", old: "return in.metadata[binding.BuilderKey] == s.Token", new: "return in.metadata[binding.BuilderKey] != \"\"",
			in: "middleware", tests: "TestWrongSourceIsRefused",
		},
		{
			name: "the token stays in the metadata", breaks: "what a handler produces carries the token of another subscriber",
			file: "middleware/source.go", old: "delete(in.metadata, binding.BuilderKey)", new: "_ = in.metadata",
			in: "middleware", tests: "TestTokenIsTakenOut",
		},
		{
			name: "no warning without the middleware", breaks: "a handler whose failures are only nacked is not noticed",
			file: "rabbitmq/handler.go", old: "if !delivery.Binding.Claimed() {", new: "if false {",
			in: "integration/connect", tests: "TestHandlerWithoutMiddleware",
		},
	}},
	{"Messages that Go clients cannot read are not published, and are dead letters within their limit", []mutation{
		{
			name: "headers that are nested too deep", breaks: "a message that no Go client can read is published",
			file: "internal/rabbitmq/publisher/inspect.go", old: "if depth > maxNesting {\n\t\treturn 0, fmt.Errorf(\"header %q is nested deeper than %d levels\", " +
				"clip(path), maxNesting)\n\t}\n\tif len(table)", new: "if depth > 2*maxNesting {\n\t\treturn 0, nil\n\t}\n\tif len(table)",
			in: "internal/rabbitmq/publisher", tests: "TestInspectRefuses",
		},
		{
			name: "a work queue without a delivery limit", breaks: "a message that closes its consumer's connection does so without end",
			file: "rabbitmq/topology/protect.go", old: "orElse(argument.DeliveryLimit, int64(DeliveryLimit))", new: "_ = DeliveryLimit",
			in: "rabbitmq/topology", tests: "TestWorkQueueProtection",
		},
		{
			name: "a work queue without a dead-letter exchange", breaks: "what the broker gives up is dropped",
			file: "rabbitmq/topology/protect.go", old: "arguments[argument.DeadLetterExchange] = n.RetryExchange()\n", new: "\n",
			in: "rabbitmq/topology", tests: "TestWorkQueueProtection",
		},
		{
			name: "what the app cannot read is nacked", breaks: "a message that the app's marshaler cannot read comes back without end",
			file: "internal/rabbitmq/headers/marshaler.go", old: "msg.Metadata[retry.UnmarshalErrorKey] = errorText(err)", new: "_ = errorText(err)",
			in: "config", tests: "TestUnreadableMessageIsMarked",
		},
	}},
}
