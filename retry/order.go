package retry

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Order makes a handler get the messages of one key one after the other, in the order of the queue. Only RabbitMQ has
// it.
type Order struct {
	// Key returns the key of a message. Messages of other keys are handled meanwhile, and messages without a key ("")
	// have no order. Required where one of the other fields is set. The default is none: no order.
	Key func(*message.Message) string

	// Partitions decides how far the order goes.
	//
	// With 0, the default, it is that of one process, and a message that waits for its retry comes back behind those
	// that follow it. A pause, also one of a breaker, puts what was fetched back to the queue, on a quorum queue behind
	// what was on its way. x-single-active-consumer gives no order across processes then: a deployment, a pause and the
	// breaker cancel the consumer while its handlers run. If more messages than Prefetch wait for their keys, other keys
	// wait too.
	//
	// With more, a message that waits keeps those of its key waiting behind it, in every process, also across crashes
	// and deployments. Messages move from the work queue to so many queues by their key, and each is consumed by one
	// process at a time. What waits stays in its queue, in the memory of that process: so there are no tiers, and every
	// delay is possible. Of two messages with one key in one call, the Publisher sends the second when the first is
	// confirmed. At a pause, a message that is held keeps its partition for up to MaxHold. At most 256, the same in all
	// processes, for the life of the queues.
	Partitions int

	// Block keeps the messages of a key waiting where one of them would become a dead letter, until an operator skips
	// it or has it handled again, with wmretry order. By default it becomes a dead letter, and the next one is handled.
	// It needs Partitions.
	Block bool

	// ConsumerTimeout is the consumer_timeout of the broker. After half of it, a message that still waits is given back
	// to its queue with those behind it, and fetched again. It needs Partitions. The default is that of RabbitMQ, 30
	// minutes. At least one second.
	ConsumerTimeout time.Duration
}
