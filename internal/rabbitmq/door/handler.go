package door

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/options"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/ordered"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/warning"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

var (
	_ message.Subscriber           = (*handlerSubscriber)(nil)
	_ message.SubscribeInitializer = (*handlerSubscriber)(nil)
	_ subscriber.Handler           = (*handlerSubscriber)(nil)
)

// A consumer is one of package subscriber, or of package ordered.
type consumer interface {
	message.Subscriber
	message.SubscribeInitializer
}

// handlerSubscriber is the subscriber of one handler of a Connection, with its retry middleware.
type handlerSubscriber struct {
	connection *Connection
	core       *core
	logger     watermill.LoggerAdapter
	name       string
	tierGroup  string // empty: its work queues have tiers of their own
	options    retry.Options
	tiers      []backoff.Tier
	headers    app.Marshaler
	subscriber consumer
	retry      *middleware.TieredRetry
	gate       *gate.Gate
	warned     atomic.Bool
	differs    sync.Once // the schedule, and that was logged

	closing context.Context // ends with Close
	close   context.CancelFunc
}

// newHandler returns an error that joins all faults of the options.
func (c *Connection) newHandler(name string, given []retry.Options) (*handlerSubscriber, error) {
	if c.isClosed() {
		return nil, faults.OfHandler(name, retry.ErrClosed)
	}
	o, err := options.One(given, &c.core.policy)
	if name == "" {
		err = errors.Join(err, errors.New("its name is empty: logs and Health need it"))
	}
	o.Concurrency = cmp.Or(o.Concurrency, defaultConcurrency)
	least := min(o.Concurrency, maxPrefetch)
	if o.Order.Partitions == 0 && o.Prefetch > 0 && o.Prefetch < least { // else it is that of a partition
		err = errors.Join(err, fmt.Errorf("Prefetch is %d: it must be between Concurrency, %d, and %d, or 0 (the "+
			"default)", o.Prefetch, least, maxPrefetch))
	}
	if err = errors.Join(err, c.core.checkOrder(o)); err != nil {
		return nil, faults.OfHandler(name, err)
	}
	group := o.Policy.TierGroup
	if group != "" {
		if err := c.core.prefix.ValidateGroup(group); err != nil {
			return nil, faults.OfHandler(name, faults.In("Policy", err))
		}
	}
	h := &handlerSubscriber{
		tierGroup:  group,
		connection: c, core: c.core, name: name, options: o,
		headers: headers.New(c.core.app.Marshaler, c.core.prefix),
		logger:  c.logger.With(watermill.LogFields{"handler_name": name}),
	}
	var by backend.Backend = handlerBackend{c.copies, group, c.sourceOf(h)}
	if o.Order.Partitions > 0 {
		by = orderedBackend{handlerBackend{c.copies, group, c.sourceOf(h)}, o.Order.Block}
	} else {
		h.tiers = middleware.Tiers(*o.Policy, true)
	}
	if h.retry, err = middleware.New(*o.Policy, by, c.logger); err != nil {
		return nil, faults.OfHandler(name, err)
	}
	h.gate = c.gates.Add(name, o.Concurrency)
	h.closing, h.close = context.WithCancel(c.stopping)
	h.subscriber = h.newSubscriber()
	return h, nil
}

func (h *handlerSubscriber) newSubscriber() consumer {
	own, order, consuming := h.core.app, h.options.Order, h.connection.consuming
	config := subscriber.Config{
		Name:         h.name,
		Concurrency:  h.options.Concurrency,
		Prefetch:     h.prefetch(),
		OrderKey:     order.Key,
		Gate:         h.gate,
		CloseTimeout: h.options.CloseTimeout,
		Consumer: channel.Options{
			Tag: own.Consume.Tag, Exclusive: own.Consume.Exclusive, NoLocal: own.Consume.NoLocal,
			Arguments: own.Consume.Arguments,
		},
	}
	if order.Partitions == 0 {
		return subscriber.NewSubscriber(consuming.Connection, h, config, h.logger)
	}
	return ordered.NewSubscriber(consuming, h, ordered.Config{
		Config: config, Partitions: h, ConsumerTimeout: cmp.Or(order.ConsumerTimeout, defaultConsumerTimeout),
	}, h.logger)
}

const (
	// perCall is how many messages are fetched for each call: while one waits for the confirm of its copy, another one
	// is handled.
	perCall = 2
	// perKey is the same where there is an Order: messages of other keys are handled while many wait for one key.
	perKey = 16
	// perPartition is how many messages of a partition may wait, with those of their keys behind them.
	perPartition = 512
)

func (h *handlerSubscriber) prefetch() int {
	least := h.options.Concurrency
	switch {
	case h.options.Prefetch > 0:
		return h.options.Prefetch
	case h.options.Order.Partitions > 0: // the same in all processes, whatever their Concurrency
		return perPartition
	case least == 1:
	case h.options.Order.Key != nil:
		least = min(perKey*least, maxPrefetch)
	default:
		least = min(perCall*least, maxPrefetch)
	}
	return max(least, h.core.app.Consume.PrefetchCount)
}

// QueueOf implements subscriber.Handler.
func (h *handlerSubscriber) QueueOf(topic string) (string, error) {
	own, group := h.core.app, h.options.Group
	switch {
	case group != "" && own.ExchangeName(topic) == "":
		return "", fmt.Errorf("Group is %q, but AMQP.Exchange.GenerateName returns no exchange for topic %q: without "+
			"an exchange a message goes "+
			"to one queue only, so that no other group would get it. Use amqp.NewDurablePubSubConfig, or no "+
			"Group", group, topic)
	case group == "" && own.QueueName == nil:
		return "", fmt.Errorf("AMQP.Queue.GenerateName is nil, and there is no Group: set one of them, so that the "+
			"queue of topic %q has a name", topic)
	}
	return workQueueOf(own, group, topic), nil
}

// workQueueOf returns the name of the work queue of a topic. A group's is that of
// amqp.GenerateQueueNameTopicNameWithSuffix.
func workQueueOf(own app.Config, group, topic string) string {
	if group != "" {
		return topic + "_" + group
	}
	return own.QueueName(topic)
}

// named returns the work queue of a topic, or what makes the topic impossible.
func (h *handlerSubscriber) named(topic string) (queue string, err error) {
	if err = options.Topic(topic); err == nil {
		queue, err = h.QueueOf(topic)
	}
	if err == nil {
		group := cmp.Or(h.tierGroup, queue)
		err = errors.Join(h.core.prefix.ValidateQueue(queue, group, h.tiers),
			h.core.prefix.ValidateExchange(h.core.app.ExchangeName(topic), group))
	}
	return queue, err
}

// add makes the tiers of the handler part of the topology of a topic's work queue.
func (h *handlerSubscriber) add(topic string) error {
	queue, err := h.named(topic)
	if err == nil {
		err = h.core.queues.add(queue, topic, h.tierGroup, h.tiers, h.order())
	}
	if err != nil {
		return faults.OfHandler(h.name, err)
	}
	own := h.options.Policy.Schedule
	if other, its, differs := h.core.queues.other(queue, h.name, own); differs {
		h.differs.Do(func() {
			warning.Log(h.logger, "Options.Policy.Schedule is not that of another handler of the same work queue: which of "+
				"both retries a message is chance; give both handlers the same Policy, or each a Group",
				watermill.LogFields{
					"queue": queue, "schedule": own.String(), "other_handler": other, "other_schedule": its.String(),
				})
		})
	}
	return nil
}

// Subscribe implements message.Subscriber.
func (h *handlerSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := h.begin(topic); err != nil {
		return nil, err
	}
	queue, err := h.QueueOf(topic)
	if err != nil {
		return nil, h.explain(err)
	}
	stopping, stop := context.WithCancel(ctx)
	detach := context.AfterFunc(h.closing, stop)
	context.AfterFunc(stopping, func() { detach() })
	bound := &msgctx.Subscription{Owner: h, Queue: queue, Retry: h.retry, Stopping: stopping.Done(), Gate: h.gate}
	messages, err := h.subscriber.Subscribe(msgctx.NewContext(ctx, bound), topic)
	if err != nil {
		stop()
		return nil, h.explain(err)
	}
	h.connection.produced.begin(h.connection.lookout, h.connection.app, h.connection.logger)
	if h.options.Order.Partitions > 0 {
		to := "the partition of its key"
		if h.core.app.ExchangeName(topic) != "" {
			to = "the exchange of its topic, and then moved to the partition of its key"
		}
		h.logger.Info("The order of each key is kept", watermill.LogFields{"topic": topic, "queue": queue,
			"partitions": h.options.Order.Partitions, "this_process_publishes_to": to})
	}
	return messages, nil
}

// SubscribeInitialize implements message.SubscribeInitializer.
func (h *handlerSubscriber) SubscribeInitialize(topic string) error {
	if err := h.begin(topic); err != nil {
		return err
	}
	return h.explain(h.subscriber.SubscribeInitialize(topic))
}

// String is the subscriber's name in Watermill's metrics and in the poison-queue keys of dead letters.
func (h *handlerSubscriber) String() string { return "rabbitmq.Subscriber" }

// Close implements message.Subscriber.
func (h *handlerSubscriber) Close() error {
	h.close()
	return h.subscriber.Close()
}

func (h *handlerSubscriber) begin(topic string) error {
	if h.connection.isClosed() {
		return faults.OfHandler(h.name, retry.ErrClosed)
	}
	return errors.Join(h.connection.faults.All(), h.add(topic))
}

func (h *handlerSubscriber) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, subscriber.ErrClosed) && h.connection.isClosed():
		err = retry.ErrClosed
	}
	return faults.OfHandler(h.name, err)
}

// Declare implements subscriber.Handler: it declares the topology of a topic's work queue.
func (h *handlerSubscriber) Declare(d *subscriber.Declaration, topic string) error {
	s, err := h.subscription(topic)
	if err != nil {
		return err
	}
	if err = h.connection.declarer.declare(d, s); err != nil {
		return err
	}
	if breaker := h.options.Policy.Breaker; breaker != nil && breaker.Key != nil {
		h.connection.declarer.control.addKeyed(keyed{h.name, s.Queue, h.gate})
		h.connection.declarer.control.add(d.Broker)
	}
	return nil
}

// Bind implements subscriber.Handler.
func (h *handlerSubscriber) Bind(d *subscriber.Declaration, topic string) error {
	s, err := h.subscription(topic)
	if err != nil {
		return err
	}
	return h.connection.declarer.bind(d, s)
}

func (h *handlerSubscriber) subscription(topic string) (app.Subscription, error) {
	queue, err := h.QueueOf(topic)
	return app.Subscription{Topic: topic, Queue: queue, Exchange: h.core.app.ExchangeName(topic), Logger: h.logger}, err
}

// MayBeQuorum implements subscriber.Handler.
func (h *handlerSubscriber) MayBeQuorum(queue string) bool {
	t, known := h.core.existing(queue)
	return !known || h.core.verifyOnly || t.WorkQueue.Arguments[queuearg.QueueType] == string(topology.Quorum)
}

// Unmarshal implements subscriber.Handler. It marks messages that the broker delivers again, where the major does so.
func (h *handlerSubscriber) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	msg, err := h.headers.Unmarshal(h.unmoved(delivery))
	if err == nil && delivery.Redelivered && h.core.app.RedeliveredKey != "" {
		msg.Metadata.Set(h.core.app.RedeliveredKey, "true")
	}
	return msg, err
}

// Nacked implements subscriber.Handler. It retries a message whose handler has succeeded: what failed was outside of
// the retry middleware.
func (h *handlerSubscriber) Nacked(msg *message.Message, of amqp091.Delivery) bool {
	delivery := msgctx.Lookup(msg)
	if delivery == nil {
		return false
	}
	if !delivery.Subscription.Claimed() {
		h.warnUnclaimed(msg)
	}
	if !delivery.Processed() {
		return false
	}
	original, err := h.Unmarshal(of)
	if err != nil {
		return false
	}
	if delivery.Kept != nil { // its failures are not in the delivery
		original.Metadata = delivery.Kept
	}
	original.SetContext(msgctx.NewContext(context.WithoutCancel(msg.Context()), delivery.Subscription))
	again := msgctx.Lookup(original)
	again.Lost, again.Leaving = delivery.Lost, delivery.Leaving
	err = h.retry.NotPublished(original, delivery.Unpublished())
	delivery.Again = again.Again
	return err == nil
}

// warnUnclaimed warns once if no retry middleware has got a message of the handler.
func (h *handlerSubscriber) warnUnclaimed(msg *message.Message) {
	if h.warned.Swap(true) {
		return
	}
	topic := message.SubscribeTopicFromCtx(msg.Context())
	queue, _ := h.QueueOf(topic)
	warning.Log(h.logger, fmt.Sprintf("Handler %q has no retry middleware: add it with "+
		"handler.AddMiddleware(rabbit.Middleware) "+
		"or router.AddMiddleware(rabbit.Middleware). Until then a failed message comes back after up to 5 s, until "+
		"the delivery limit of queue %q, "+
		"if it has one, makes it a dead letter", h.name, queue), watermill.LogFields{"topic": topic, "queue": queue})
}

// refusedSubscriber is the subscriber of a handler with faults.
type refusedSubscriber struct {
	connection *Connection
	name       string
}

func (r refusedSubscriber) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	if r.connection.isClosed() {
		return nil, faults.OfHandler(r.name, retry.ErrClosed)
	}
	return nil, r.connection.faults.All()
}

func (r refusedSubscriber) Close() error { return nil }
