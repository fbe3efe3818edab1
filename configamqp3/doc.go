// Package configamqp3 configures tiered retries on RabbitMQ for apps with watermill-amqp v3. It has the same names as package config,
// which is for watermill-amqp v2, and the broker gets the same from both. So an app can change from v2 to v3 without a change on
// the broker, and apps on both can share queues, tiers and dead letters.
//
//	rabbit, err := configamqp3.Connect(configamqp3.BuilderConfig{
//		AMQP:     amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
//		Schedule: backoff.Exponential(time.Second, 5, 4),
//	}, logger)
//
// The rest of the app is that of package config, whose Example is a whole program.
//
// The required fields of BuilderConfig:
//
//	AMQP     amqp.Config       // the app's own configuration for v3; never modified
//	Schedule backoff.Schedule  // the delay before each retry
//
// The optional fields:
//
//	Rules                  []retry.Rule       // what follows on errors of one kind
//	TierGroup              string                  // the group of work queues that share tiers
//	NoInbox                bool                    // no work queue of the group has an inbox
//	Jitter                 float64                 // spreads the retries of messages that failed together
//	ExtraTiers             []time.Duration         // tiers for requested delays
//	Prefix                 string                  // part of the names of exchanges and tiers; default "retry", at most 244 bytes
//	QueueType              topology.QueueType      // of tier and dead-letter queues; default topology.Quorum
//	WorkQueueMode          topology.WorkQueueMode  // what is done with the app's own queues; default topology.Protect
//	DeadLetters            topology.Retention      // limits of the dead-letter queues; default none
//	TierArguments          amqp091.Table           // further arguments of tiers
//	DeadLetterArguments    amqp091.Table           // further arguments of dead-letter queues
//	AllowUnprotectedQuorum bool                    // accept a quorum queue that only a policy protects (RabbitMQ 4.0 to 4.2)
//	VerifyOnly             bool                    // declare nothing, only check that the topology exists
//	Management             string                  // address of the management API, for Health.Tiers; default none
//
// The methods of Connection, which Connect returns and which is the same type in both packages:
//
//	AddConsumerHandler(router, name, topic, handler, options...) *message.Handler
//	AddHandler(router, name, subscribeTopic, publishTopic, handler, options...) *message.Handler
//	Close() error                                             // ends subscriptions, publishers and connections
//	Observe(observers ...retry.Observer)                 // metrics and traces: see module observe
//	Health() retry.Health                                // for readiness probes
//	Middleware(message.HandlerFunc) message.HandlerFunc       // for handlers that the app adds by itself
//	Pause(handler) error                                      // the handler takes no new messages, until Resume
//	Publisher() message.Publisher                             // confirmed; an unroutable message is an error
//	Resume(handler) error
//	Subscriber(name, options...) (message.Subscriber, error)  // for cqrs, Requeuer, FanIn
//
// Options of handlers are a middleware.HandlerOptions, as in package config.
//
// Builder, BuilderConfig and Connection are aliases. Package rabbitmq documents them and their methods in full: ask go doc for that
// package, not for configamqp3, for example go doc github.com/tieredretry/watermill-retry/rabbitmq.Connection. NewBuilder is for
// apps that wire the parts by themselves, or stay on the subscriber of v3. The methods of Builder:
//
//	SubscriberConfig() amqp.Config                      // for amqp.NewSubscriber of v3
//	DeadLetterSubscriberConfig() amqp.Config            // the same, to read dead letters
//	NewPublisher(logger) (*publisher.Publisher, error)  // the publisher of failures, for TieredRetryConfig
//	TieredRetryConfig(failures) middleware.TieredRetryConfig
//	Topology(topic) topology.Topology                   // what the broker gets for a topic
//
// The function DeadLetterSubscriberConfig makes the configuration of a reader of dead letters of the app's own, without a builder.
//
// Differences between v3 and v2 that concern retries:
//
//   - v3 calls QueueBind.GenerateRoutingKey at every Subscribe, also without an exchange. Connect and NewBuilder refuse a nil one, because
//     Subscribe would panic. v3 calls it with the topic, v2 with the queue's name. If an app's routing keys depend on that, the
//     change from v2 to v3 binds the queue with another key, and the old binding stays until it is removed.
//   - A message that the broker delivers again has the metadata key _watermill_amqp_redelivered. Copies on a tier and dead letters
//     do not have it.
//   - DefaultMarshaler.PreprocessDelivery gets a retried message as it was the first time, without the broker's x-death header. It
//     may change headers: the original ones survive the retry. If it changes the body, PostprocessPublishing has to undo that,
//     because a copy is made of the message that the handler got.
//   - NewDurableTopicConfig has one queue for all topics. Give each handler of a Connection a Group: then it has a queue of its own.
//     Without groups, Connect refuses a second topic. With NewBuilder, use one builder and one subscriber for each queue, with one
//     topic: handlers of two topics would take each other's messages, and count their failures from the beginning.
//
// With NewBuilder, v3's subscriber has these limits of v2 too: a subscription has one message in flight; without the builder's
// marshaler, the broker delivers a message that the marshaler cannot read again at once and without end; when the broker cancels a
// consumer, its handler gets an empty message; and the subscriber has a data race when it reconnects.
package configamqp3
