// Package config configures tiered retries on RabbitMQ for apps with watermill-amqp v2. For watermill-amqp v3 import
// package config/amqp3.
//
//	rabbit, err := config.Connect(config.Config{
//		AMQP:   amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
//		Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
//	}, logger)
//	defer rabbit.Close() // after router.Run has returned
//	rabbit.AddConsumerHandler(router, "billing", "orders", bill)
//
// NewBuilder is for apps that stay on watermill-amqp's subscriber. A program that only reads dead letters needs no
// builder and no Connection: the function DeadLetterSubscriberConfig takes the app's own amqp.Config.
//
// Package topology describes what is declared on the broker, and has the constants for QueueType and WorkQueueMode and
// the errors of Subscribe. The broker's user needs permissions for all these names and for the work queue: see
// docs/operations.md.
package config
