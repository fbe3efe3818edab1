package door

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/ordered"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

var _ ordered.Partitions = (*handlerSubscriber)(nil)

// defaultConsumerTimeout is RabbitMQ's.
const defaultConsumerTimeout = 30 * time.Minute

// order is what all handlers and publishers of a work queue that keeps an order must agree on. The zero value: it keeps
// none.
type order struct {
	partitions, prefetch int
	key                  func(*message.Message) string
}

func (h *handlerSubscriber) order() order {
	own := h.options.Order
	if own.Partitions == 0 {
		return order{}
	}
	return order{own.Partitions, h.prefetch(), own.Key}
}

// partitionOf returns the partition of a message. Those without a key are spread by their UUIDs, and those without a
// UUID by their payloads: each comes to the same one when it is delivered again.
func (o order) partitionOf(msg *message.Message) (partition int, key string, err error) {
	err = panics.Error("Order.Key", func() error { key = o.key(msg); return nil })
	switch {
	case key != "":
		return naming.PartitionOf(key, o.partitions), key, err
	case msg.UUID != "":
		return naming.PartitionOf(msg.UUID, o.partitions), "", err
	}
	return naming.PartitionOf(string(msg.Payload), o.partitions), "", err
}

// checkOrder refuses what a handler with partitions cannot have.
func (c *core) checkOrder(o retry.Options) error {
	if o.Order.Partitions == 0 {
		return nil
	}
	var faults []error
	fault := func(format string, arguments ...any) { faults = append(faults, fmt.Errorf(format, arguments...)) }
	if group := o.Policy.TierGroup; group != "" {
		fault("Policy.TierGroup is %q: with Order.Partitions no message waits on a tier: leave it out of the handler's "+
			"policy", group)
	}
	if extra := o.Policy.ExtraTiers; len(extra) > 0 {
		fault("Policy.ExtraTiers has %v: with Order.Partitions every delay is possible without a tier: leave it out of "+
			"the handler's policy", extra)
	}
	if priority, found := c.app.Consume.Arguments["x-priority"]; found {
		fault("AMQP.Consume.Arguments has x-priority %v: with Order.Partitions a consumer with a higher priority would "+
			"stop the one that has the messages", priority)
	}
	if c.app.Consume.Exclusive {
		fault("AMQP.Consume.Exclusive is true: with Order.Partitions all processes consume a queue, and the broker " +
			"gives its messages to one of them")
	}
	return errors.Join(faults...)
}

// orderedBackend keeps messages in place of publishing copies of them, but for dead letters.
type orderedBackend struct {
	handlerBackend
	blocks bool
}

// Use implements backend.Backend.
func (b orderedBackend) Use(policy retry.Policy) (backend.Traits, error) {
	traits, err := b.handlerBackend.Use(policy)
	traits.TiersWait, traits.Blocks = false, b.blocks
	return traits, err
}

// Publish implements backend.Backend.
func (b orderedBackend) Publish(c backend.Copy) (backend.Destination, error) {
	if c.Tier == 0 && !c.Blocked {
		return b.handlerBackend.Publish(c)
	}
	record, _ := retry.ReadRecord(c.Message.Metadata)
	delivery := msgctx.Lookup(c.Message)
	delivery.Again = &msgctx.Again{Metadata: c.Message.Metadata, Due: record.DueAt, Blocked: c.Blocked}
	return backend.Destination{Queue: c.Queue}, nil
}

// Queues implements ordered.Partitions.
func (h *handlerSubscriber) Queues(work string) (partitions []string, members string) {
	for i := range h.options.Order.Partitions {
		partitions = append(partitions, naming.PartitionQueue(work, i))
	}
	return partitions, naming.MembersQueue(work)
}

// Route implements ordered.Partitions.
func (h *handlerSubscriber) Route(
	topic string, msg *message.Message, delivery amqp091.Delivery,
) (exchange, key string, publishing amqp091.Publishing, err error) {
	queue, err := h.QueueOf(topic)
	if err != nil {
		return "", "", publishing, err
	}
	partition, _, _ := h.order().partitionOf(msg) // without a key where Key panics, which the log has
	publishing = headers.Moved(delivery, queue, h.core.prefix)
	m := publisher.Message{
		Exchange: naming.OrderExchange(queue), RoutingKey: strconv.Itoa(partition), UUID: msg.UUID,
		Publishing: publishing,
	}
	excess, err := h.connection.publishing.Excess(&m)
	switch {
	case errors.Is(err, publish.ErrNotConnected): // the limit is not known, and another connection moves the message
		err = nil
	case excess > 0:
		err = fmt.Errorf("%d bytes too many for a frame", excess)
	}
	if err != nil {
		err = m.Failure(publish.ErrRefused, err)
	}
	return m.Exchange, m.RoutingKey, publishing, err
}

// unmoved returns a delivery as the work queue has delivered it, with headers that the app's marshaler may change: the
// subscriber reads them again.
func (h *handlerSubscriber) unmoved(d amqp091.Delivery) amqp091.Delivery {
	if h.options.Order.Partitions == 0 {
		return d
	}
	queue, isOrder := naming.QueueOfOrder(d.Exchange)
	if isOrder && h.core.queues.order(queue).partitions > 0 {
		return headers.Unmoved(d, queue)
	}
	d.Headers = maps.Clone(d.Headers)
	return d
}

// inOrder sends messages of a topic whose handler keeps an order directly to their partitions: those of one key one
// after the other, so that none overtakes one that was refused. It reports false for another topic.
func (p appPublisher) inOrder(all []publisher.Message, messages []*message.Message) ([]error, bool, error) {
	queue := all[0].RoutingKey
	o := p.core.queues.order(queue)
	if all[0].Exchange != "" || o.partitions == 0 {
		return nil, false, nil
	}
	keys := make([]string, len(all))
	for i, msg := range messages {
		partition, key, err := o.partitionOf(msg)
		if err != nil {
			return nil, true, all[i].Failure(publish.ErrRefused, err)
		}
		headers.Direct(&all[i].Publishing)
		keys[i], all[i].Exchange, all[i].RoutingKey = key, naming.OrderExchange(queue), strconv.Itoa(partition)
	}
	failures := make([]error, len(all))
	first := 0
	for last := range runs(keys) {
		failed, err := p.connection.Send(all[first:last]...)
		if err == nil {
			err = join(slices.Clone(failed))
		}
		copy(failures[first:], failed)
		if err != nil {
			for i := last; i < len(all); i++ {
				failures[i] = all[i].Failure(publish.ErrRefused, errBehind)
			}
			if failed == nil {
				return nil, true, err
			}
			return failures, true, nil
		}
		first = last
	}
	return failures, true, nil
}

// runs yields the ends of the longest runs of keys in which each key occurs once. Messages without a key may be in any.
func runs(keys []string) iter.Seq[int] {
	return func(yield func(end int) bool) {
		if len(keys) == 1 { // without a map
			yield(1)
			return
		}
		first, last := 0, make(map[string]int, len(keys)) // the last place of each key
		for i, key := range keys {
			if key == "" {
				continue
			}
			if at, found := last[key]; found && at >= first {
				if !yield(i) {
					return
				}
				first = i
			}
			last[key] = i
		}
		yield(len(keys))
	}
}

var errBehind = errors.New("a message before it could not be published, and they may have the same key")

// checkSingle refuses brokers on which a single active consumer can stop for ever.
func checkSingle(version string) error {
	if workqueue.StopsSingleConsumers(version) {
		return fmt.Errorf("RabbitMQ %s can stop to deliver to a single active consumer for ever: with Order.Partitions "+
			"update it to 4.3.6 or later", version)
	}
	return nil
}
