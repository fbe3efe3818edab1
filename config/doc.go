// Package config configures tiered retries on RabbitMQ for apps with watermill-amqp v2. For watermill-amqp v3 import package
// configamqp3.
//
//	rabbit, err := config.Connect(config.BuilderConfig{
//		AMQP:     amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
//		Schedule: backoff.Exponential(time.Second, 5, 4),
//	}, logger)
//	defer rabbit.Close() // after router.Run has returned
//	rabbit.AddConsumerHandler(router, "billing", "orders", bill)
//
// The fields of BuilderConfig are:
//
//	AMQP                   amqp.Config             // the app's own configuration; required, never modified
//	Schedule               backoff.Schedule        // the delay before each retry; required
//	Rules                  []retry.Rule       // decide about failures of one kind; default none
//	ExtraTiers             []time.Duration         // tiers that no schedule uses, for requested delays; default none, in a group backoff.Ladder
//	TierGroup              string                  // work queues of a group share their tiers; default each has its own
//	NoInbox                bool                    // refuse work queues that need an inbox in the group
//	Jitter                 float64                 // spreads the retries of messages that failed together; default 0, at most 1
//	Prefix                 string                  // part of the names of exchanges and tiers; default "retry", at most 244 bytes
//	QueueType              topology.QueueType      // of tier and dead-letter queues; default topology.Quorum
//	WorkQueueMode          topology.WorkQueueMode  // what is done with the app's own queues; default topology.Protect
//	DeadLetters            topology.Retention      // how many dead letters are kept, and how long; default all
//	TierArguments          amqp091.Table           // added to the arguments of tiers
//	DeadLetterArguments    amqp091.Table           // added to the arguments of dead-letter queues
//	AllowUnprotectedQuorum bool                    // accept a quorum queue that only a policy protects (RabbitMQ 4.0 to 4.2)
//	VerifyOnly             bool                    // declare nothing, only check that the topology exists
//	Management             string                  // address of the management API, for Health.Tiers; default none
//
// The methods of Connection, which Connect returns, are:
//
//	AddConsumerHandler(router, name, topic, handler, options...)          // *message.Handler, with retries
//	AddHandler(router, name, topic, publishTopic, handler, options...)    // for a handler that produces messages
//	Subscriber(name, options...) (message.Subscriber, error)              // for code that adds handlers by itself
//	Middleware(message.HandlerFunc) message.HandlerFunc                   // for handlers with a Subscriber
//	Publisher() message.Publisher                                         // of the app's own messages
//	Pause(handler) error                                                  // the handler takes no new messages
//	Resume(handler) error
//	Observe(observers ...retry.Observer)                 // metrics and traces: see module observe
//	Health() retry.Health
//	Close() error
//
// The options of a handler are a middleware.HandlerOptions: consumer group, schedule, jitter, concurrency, order key, and changes to the
// configuration of the retry middleware. Connect takes one too, with the defaults of all handlers.
//
// NewBuilder is for apps that wire the parts by themselves, or stay on watermill-amqp's subscriber. The methods of Builder are:
//
//	SubscriberConfig() amqp.Config                // for amqp.NewSubscriber
//	DeadLetterSubscriberConfig() amqp.Config      // the same, to read dead letters
//	NewPublisher(logger) (*publisher.Publisher, error)
//	TieredRetryConfig(failures) middleware.TieredRetryConfig
//	Topology(topic) topology.Topology             // exchanges, queues and bindings
//
// A program that only reads dead letters needs no builder and no Connection: the function DeadLetterSubscriberConfig takes the app's
// own amqp.Config.
//
// BuilderConfig, Connection and Builder are aliases of types of package rabbitmq, which documents them and their methods in full. Ask
// go doc for that package, not for config:
//
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.BuilderConfig
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.Builder
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.Builder.NewPublisher
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.Connection
//
// Package topology describes what the builder declares on the broker, and has the constants for QueueType and WorkQueueMode and
// the errors of Subscribe. The broker's user needs permissions for all these names and for the work queue: see docs/operations.md.
package config
