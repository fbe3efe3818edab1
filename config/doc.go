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
// NewBuilder is for apps that stay on watermill-amqp's subscriber. They have, other than with Connect:
//
//   - one call of a handler at the same time; for more, add it several times, under different names
//   - a builder, a subscriber and a middleware for each consumer group, with two connections for each, and those of the
//     app's own publishers, for which Publish.ConfirmDelivery is to be set
//   - a lost binding of the work queue that is bound again only at the next subscription or reconnect
//   - no health and no pause; of the metrics, with Builder.Observe, outcomes, durations, ages, lateness, traces and the
//     results of publishing copies
//   - one to five deliveries of 20 that a shutdown counts (watermill-amqp 2.1.3)
//   - the data race of watermill-amqp's subscriber when it reconnects, and its empty message of a cancelled consumer
//
// A program that only reads dead letters needs no
// builder and no Connection: the function DeadLetterSubscriberConfig takes the app's own amqp.Config.
//
// Package topology describes what is declared on the broker, and has the constants for QueueType and WorkQueueMode and
// the errors of Subscribe. The broker's user needs permissions for all these names and for the work queue: see
// docs/operations.md.
package config
