// Package config configures tiered retries on RabbitMQ for apps with watermill-amqp v2. For watermill-amqp v3 import package
// configamqp3.
//
//	rabbit, err := config.NewBuilder(config.BuilderConfig{
//		AMQP:     amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
//		Schedule: backoff.Exponential(time.Second, 5, 4),
//	})
//	subscriber, err := amqp.NewSubscriber(rabbit.SubscriberConfig(), logger)
//	failures, err := rabbit.NewPublisher(logger)
//	retry, err := middleware.NewTieredRetry(rabbit.TieredRetryConfig(failures), logger)
//	router.AddConsumerHandler("billing", "orders", subscriber, bill).AddMiddleware(retry.Middleware)
//
// Package rabbitmq documents the fields of BuilderConfig and the methods of Builder:
//
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.BuilderConfig
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.Builder
//
// The methods of Builder are:
//
//	SubscriberConfig() amqp.Config                // for amqp.NewSubscriber
//	DeadLetterSubscriberConfig() amqp.Config      // the same, to read dead letters
//	NewPublisher(logger) (*publisher.Publisher, error)
//	TieredRetryConfig(failures) middleware.TieredRetryConfig
//	Topology(topic) topology.Topology             // exchanges, queues and bindings
//
// Package topology describes what the builder declares on the broker, and has the constants for QueueType and WorkQueueMode and
// the errors of Subscribe. The broker's user needs permissions for all these names and for the work queue: see docs/operations.md.
package config
