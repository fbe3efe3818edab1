package retry

import (
	"errors"
	"fmt"
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
	// process at a time. What waits stays in its queue, in the memory of that process: so there are no tiers, and
	// every delay is possible. At most 256, the same in all processes, for the life of the queues.
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

// validate reports all faults, joined.
func (o Order) validate() error {
	var faults []error
	if o.Key == nil && (o.Partitions != 0 || o.Block || o.ConsumerTimeout != 0) {
		faults = append(faults, errors.New("Order.Key is nil: it must return the key of a message"))
	}
	if o.Partitions < 0 || o.Partitions > 256 {
		faults = append(faults, fmt.Errorf("Order.Partitions is %d: it must be between 0 (one process) and 256",
			o.Partitions))
	}
	if o.Partitions == 0 && o.Block {
		faults = append(faults, errors.New("Order.Block is true, but Order.Partitions is 0: set the number of partitions"))
	}
	switch {
	case o.ConsumerTimeout == 0:
	case o.Partitions == 0:
		faults = append(faults, fmt.Errorf("Order.ConsumerTimeout is %v, but Order.Partitions is 0: set the number of "+
			"partitions", o.ConsumerTimeout))
	case o.ConsumerTimeout < time.Second:
		faults = append(faults, fmt.Errorf("Order.ConsumerTimeout is %v: it must be at least 1s, or 0 (30 minutes)",
			o.ConsumerTimeout))
	}
	return errors.Join(faults...)
}
