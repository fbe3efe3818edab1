package topology

import (
	"errors"
	"fmt"
	"maps"
	"strconv"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
)

const maxShortString = 255 // bytes of a queue's name: AMQP 0-9-1 sends its length in one byte

// addPartitions adds the exchange and the queues of a work queue whose order is kept.
func (t *Topology) addPartitions(n naming.Prefix) {
	work := t.WorkQueue.Name
	if longest := naming.MembersQueue(work); len(longest) > maxShortString { // longer than the name of a partition
		t.fault = errors.Join(t.fault, fmt.Errorf("work queue %q: the name of a queue of its order, %q, has %d bytes: "+
			"AMQP allows %d", work, longest, len(longest), maxShortString))
	}
	t.fault = errors.Join(append(gaps(t.WorkQueue), t.fault)...)
	exchange := Exchange{Name: naming.OrderExchange(work), Kind: amqp091.ExchangeDirect, Durable: true}
	t.Exchanges = append(t.Exchanges, exchange,
		Exchange{Name: n.OrderControl(), Kind: amqp091.ExchangeFanout, Durable: true})
	t.Queues = append(t.Queues,
		Queue{Name: naming.MembersQueue(work), Durable: true, Arguments: restArguments(Quorum)})
	for i := range t.config.Partitions {
		queue := Queue{Name: naming.PartitionQueue(work, i), Durable: true, Arguments: t.config.partitionArguments(n, work)}
		t.Queues = append(t.Queues, queue)
		t.Bindings = append([]Binding{{Exchange: exchange.Name, Queue: queue.Name, Key: strconv.Itoa(i)}}, t.Bindings...)
	}
}

// gaps returns the arguments of a work queue that change the order of its messages, or remove some of them.
func gaps(work Queue) (faults []error) {
	arguments := work.Arguments
	fault := func(key, reason, do string) {
		faults = append(faults, fmt.Errorf("work queue %q has %s %v: with Partitions %s. %s", work.Name, key,
			arguments[key], reason, do))
	}
	const leave = "Leave it out of AMQP.Queue.Arguments, or give the ordered handler a Connect of its own"
	if kind := arguments[queuearg.QueueType]; kind != nil && kind != string(Quorum) {
		fault(queuearg.QueueType, "only quorum queues put messages back in their order", leave)
	}
	if hasAny(arguments, queuearg.MessageTTL) {
		fault(queuearg.MessageTTL, "a message that expires is a gap in the order of its key", leave)
	}
	for _, key := range []string{queuearg.MaxLength, queuearg.MaxLengthBytes} {
		if hasAny(arguments, key) && arguments[queuearg.Overflow] != queuearg.RejectPublish {
			fault(key, "the oldest message, which a full queue drops, is a gap in the order of its key",
				"Set x-overflow to reject-publish. "+leave)
		}
	}
	if given, set := arguments[queuearg.DeliveryLimit]; set {
		if limit, valid := declared(nil, given); !valid || limit.(int64) < unlimited {
			fault(queuearg.DeliveryLimit, "a message that is delivered more often is a gap in the order of its key",
				fmt.Sprintf("%s: it is then %d. Delete a queue that has it, while it is empty", leave, unlimited))
		}
	}
	return faults
}

// partitionArguments returns the arguments of a partition. The broker compares the delivery limit with that of the
// queue that exists, and so refuses another number of partitions, or another prefetch.
func (c Config) partitionArguments(n naming.Prefix, work string) amqp091.Table {
	return amqp091.Table{
		queuearg.QueueType:            string(Quorum),
		queuearg.SingleActiveConsumer: true,
		queuearg.DeliveryLimit:        int64(c.Partitions)*unlimited + int64(c.Prefetch),
		queuearg.DeadLetterExchange:   n.RetryExchange(),
		queuearg.DeadLetterRoutingKey: naming.DeadKey(work),
		queuearg.DeadLetterStrategy:   queuearg.AtLeastOnce,
		queuearg.Overflow:             queuearg.RejectPublish,
		queuearg.QueueLeaderLocator:   queuearg.Balanced,
	}
}

// single makes a queue have one active consumer at a time.
func single(queue Queue) Queue {
	arguments := maps.Clone(queue.Arguments)
	if arguments == nil {
		arguments = amqp091.Table{}
	}
	arguments[queuearg.SingleActiveConsumer] = true
	if _, set := arguments[queuearg.DeliveryLimit]; !set { // what is not moved goes back with every session
		arguments[queuearg.DeliveryLimit] = unlimited
	}
	queue.Arguments = arguments
	return queue
}

// advisePartition adds to a conflict of a partition what the numbers in its delivery limit are.
func (t Topology) advisePartition(err error) error {
	var conflict *ArgumentConflictError
	if !errors.As(err, &conflict) || t.config.Partitions == 0 || conflict.Argument != queuearg.DeliveryLimit {
		return err
	}
	limit, _ := strconv.ParseInt(conflict.Have, 10, 64)
	conflict.Advice = fmt.Sprintf("it is one of %d partitions with a Prefetch of %d, and this handler has %d with %d: "+
		"give it the same, or follow \"Other partitions\" of docs/order.md", limit/unlimited, limit%unlimited,
		t.config.Partitions, t.config.Prefetch)
	return err
}
