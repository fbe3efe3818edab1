package retry

import "time"

// Options are the options of one handler. Every field has a default.
type Options struct {
	// Policy is the handler's own policy, complete: nothing of the connection's is added to it. To change one field,
	// start from a copy of the connection's. Nil: the connection's.
	Policy *Policy

	// Group is the consumer group: each group gets every message of a topic, and the handlers of a group share them.
	// That needs a backend with consumer groups: on gochannel each handler gets every message, with or without a group.
	// On RabbitMQ the group's queue is named "<topic>_<group>", as
	// amqp.GenerateQueueNameTopicNameWithSuffix names it, and the app's configuration needs an exchange
	// (amqp.NewDurablePubSubConfig). The default is that of the connection; on RabbitMQ none.
	Group string

	// Concurrency is how many calls of the handler run at the same time, at most. The default is 16. 1 keeps the order
	// of the queue, on gochannel excepted, and on RabbitMQ with a Prefetch of 1. 65,535 is the most. Kafka delivers one
	// message of each partition at a time: a topic with fewer partitions is a line in the log.
	Concurrency int

	// Prefetch is how many messages the broker sends ahead of their acks. It bounds the messages in flight: calls, and
	// messages whose copies or produced messages are not confirmed yet, together. While these wait, other messages are
	// handled, except with a Concurrency of 1, with an Order, while the handler is limited or holds a message, and
	// where a Breaker waits for produced messages. With a Prefetch equal to Concurrency, each message keeps its place
	// until it is acknowledged. A higher one is for slow confirms, and for handlers that end within a millisecond. The
	// default is twice the concurrency, 1 with a Concurrency of 1, 16 times the concurrency with an Order, and in each
	// case at least AMQP.Consume.Qos.PrefetchCount. It is between Concurrency and 65,535. With Order.Partitions it is
	// that of each partition, 512 by default, and stays the same for the life of the queues. Only RabbitMQ has it.
	Prefetch int

	// Order keeps the order of messages with one key. Only RabbitMQ has it. The default is none.
	Order Order

	// CloseTimeout is how long the handler may go on with its messages after its subscription has ended. Then their
	// contexts end, and a second later they are given up: the broker delivers them again. Set it to the CloseTimeout of
	// the router if that is longer. Only RabbitMQ has it. The default is 30 seconds, which is also the default of the
	// router.
	CloseTimeout time.Duration
}
