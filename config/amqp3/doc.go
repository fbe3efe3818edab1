// Package amqp3 configures tiered retries on RabbitMQ for apps with watermill-amqp v3. It has the same names as package
// config, which is for watermill-amqp v2, and the broker gets the same from both. So an app can change from v2 to v3
// without a change on the broker, and apps on both can share queues, tiers and dead letters.
//
//	rabbit, err := amqp3.Connect(amqp3.Config{
//		AMQP:   amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
//		Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
//	}, logger)
//
// The rest of the app is that of package config, whose Example is a whole program.
//
// The names are those of package config, whose documentation holds here too. What differs:
//
//   - This package is a module of its own. It uses internal packages of the root module: require both in the same
//     version.
//   - v3 calls QueueBind.GenerateRoutingKey at every Subscribe, also without an exchange. Connect and NewBuilder refuse
//     a nil one, because Subscribe would panic. v3 calls it with the topic, v2 with the queue's name. If an app's
//     routing keys depend on that, the change from v2 to v3 binds the queue with another key, and the old binding stays
//     until it is removed.
//   - A message that the broker delivers again has the metadata key _watermill_amqp_redelivered. Copies on a tier and
//     dead letters do not have it.
//   - DefaultMarshaler.PreprocessDelivery gets a retried message as it was the first time, without the broker's x-death
//     header. It may change headers: the original ones survive the retry. If it changes the body, PostprocessPublishing
//     has to undo that, because a copy is made of the message that the handler got.
//   - NewDurableTopicConfig has one queue for all topics. Give each handler of a Connection a Group: then it has a
//     queue of its own. Without groups, Connect refuses a second topic. With NewBuilder, use one builder and one
//     subscriber for each queue, with one topic: handlers of two topics would take each other's messages, and count
//     their failures from the beginning.
//
// With NewBuilder, v3's subscriber has these limits of v2 too: a subscription has one message in flight; without the
// builder's marshaler, the broker delivers a message that the marshaler cannot read again at once and without end; when
// the broker cancels a consumer, its handler gets an empty message; and the subscriber has a data race when it
// reconnects.
package amqp3
