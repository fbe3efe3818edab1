package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/options"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/internal/users"
	"github.com/tieredretry/watermill-retry/retry"
)

// connection is the retry.Connection of Connect.
type connection struct {
	relay   *relay
	retry   *middleware.TieredRetry // with the policy of the connection
	gates   gate.Handlers
	faults  faults.Handlers
	closing chan struct{} // closed by Close

	unsettled users.Count // messages that are delivered, and not yet settled as the router has settled their copies

	mu          sync.Mutex
	subscribers []*subscriber
	closed      bool
}

// Connect returns a connection to a Pub/Sub whose messages a relay retries, or an error that reports all faults of the
// configuration. Connect does not connect to the backend: NewSubscriber is called for each handler that is added, and
// the tiers are subscribed with the first handler. Where that fails, the router's Run returns the error. A nil logger
// logs nothing.
//
// The methods of the retry.Connection are documented there. What they do here:
//
//   - AddConsumerHandler, AddHandler, Subscriber: the default of Concurrency is 16. It bounds the calls; a Pub/Sub that
//     delivers fewer messages at a time has fewer. The retries of a group and topic go to "<Prefix>.return.<group>.
//     <topic>", its dead letters to "<Prefix>.dead.<group>.<topic>": handlers may be renamed, and may differ between
//     processes. Where that is longer than 200 bytes or has characters that not every backend takes, it ends with a
//     hash.
//   - Without Config.Group, these topics belong to the handler instead, "<Prefix>.return.<name>", or "<name>.<topic>"
//     with Subscriber. A handler then needs one name in all processes, and Subscribe returns an error for a topic that
//     a handler of the same name is subscribed to: each of the two would get every message and every retry.
//   - Pause: the Pub/Sub goes on delivering: the next message waits before the handler. After Policy.MaxHold it is
//     nacked, and waits again when the Pub/Sub redelivers it: a Pub/Sub that counts redeliveries counts each of them,
//     and one that puts a nacked message behind the others changes the order.
//   - Health has no links: the subscribers have their own connections. A subscription is not consuming after its
//     subscriber has closed the channel.
//   - Close also closes the subscribers of the handlers, the AppPublisher and Config.Publisher.
func Connect(config Config, logger watermill.LoggerAdapter) (retry.Connection, error) {
	if err := config.Validate(); err != nil {
		return nil, faults.Of("invalid relay.Config", err)
	}
	c := &connection{relay: newRelay(config, logger), closing: make(chan struct{})}
	var err error
	if c.retry, err = c.newRetry(c.relay.config.Policy); err != nil {
		return nil, err
	}
	return c, nil
}

// defaultConcurrency is that of RabbitMQ.
const defaultConcurrency = 16

// checkOptions refuses what only RabbitMQ has.
func checkOptions(o retry.Options) error {
	var faults []error
	if o.Prefetch != 0 {
		faults = append(faults, fmt.Errorf("Prefetch is %d: only RabbitMQ has it: remove it; Concurrency bounds the "+
			"messages in flight", o.Prefetch))
	}
	if o.CloseTimeout > 0 { // one below 0 is a fault everywhere
		faults = append(faults, fmt.Errorf("CloseTimeout is %v: only RabbitMQ has it: remove it; the Pub/Sub's own "+
			"subscriber decides when messages in flight end", o.CloseTimeout))
	}
	if o.Order.Key != nil {
		faults = append(faults, errors.New("Order.Key is set: only RabbitMQ has it: remove it, and set Concurrency to "+
			"1 where messages must be handled one after the other"))
	}
	if o.Policy != nil {
		if err := options.Ungrouped(*o.Policy); err != nil {
			faults = append(faults, fmt.Errorf("Policy: %w", err))
		}
	}
	return errors.Join(faults...)
}

// newRetry makes the retry middleware of a handler, and the tiers of its policy.
func (c *connection) newRetry(policy retry.Policy) (*middleware.TieredRetry, error) {
	return middleware.New(policy, c.relay, c.relay.logger)
}

// AddConsumerHandler implements retry.Connection.
func (c *connection) AddConsumerHandler(
	router *message.Router, name, topic string, handler message.NoPublishHandlerFunc, options ...retry.Options,
) *message.Handler {
	faults.CheckRouter(name, router == nil)
	c.faults.AddNil(name, handler == nil)
	subscriber := c.handlerSubscriber(name, topic, options)
	added := router.AddConsumerHandler(name, topic, subscriber, handler)
	added.AddMiddleware(c.Middleware)
	return added
}

// AddHandler implements retry.Connection.
func (c *connection) AddHandler(
	router *message.Router, name, subscribeTopic, publishTopic string, handler message.HandlerFunc,
	options ...retry.Options,
) *message.Handler {
	faults.CheckRouter(name, router == nil)
	c.faults.AddNil(name, handler == nil)
	subscriber := c.handlerSubscriber(name, subscribeTopic, options)
	producer := middleware.Producer{Publisher: c.Publisher()}
	added := router.AddHandler(name, subscribeTopic, subscriber, publishTopic, producer, handler)
	added.AddMiddleware(c.Middleware)
	return added
}

// handlerSubscriber returns the subscriber of a handler of one topic. With faults, all subscribers of the connection
// refuse to subscribe.
func (c *connection) handlerSubscriber(name, topic string, given []retry.Options) message.Subscriber {
	s, err := c.subscriber(name, topic, false, given)
	if err == nil {
		return s
	}
	err = faults.OfHandler(name, err)
	if !errors.Is(err, errClosed) {
		c.faults.Add(err)
	}
	return refused{&c.faults, err}
}

// Subscriber implements retry.Connection.
func (c *connection) Subscriber(name string, options ...retry.Options) (message.Subscriber, error) {
	s, err := c.subscriber(name, "", true, options)
	if err != nil {
		return nil, fmt.Errorf("subscriber %q: %w", name, err)
	}
	return s, nil
}

func (c *connection) subscriber(
	name, topic string, perTopic bool, given []retry.Options,
) (*subscriber, error) {
	o, err := options.One(given, &c.relay.config.Policy)
	err = errors.Join(err, checkOptions(o))
	if name == "" {
		err = errors.Join(err, errors.New("the name is empty: give the handler a name; logs and failure records have it"))
	}
	if !perTopic {
		err = errors.Join(err, c.checkTopic(topic))
	}
	if err != nil {
		return nil, err
	}
	o.Group, o.Concurrency = cmp.Or(o.Group, c.relay.config.Group), cmp.Or(o.Concurrency, defaultConcurrency)
	tiered, err := c.newRetry(*o.Policy)
	if err != nil {
		return nil, err
	}
	stock, err := c.relay.config.newSubscriber(SubscriberParams{
		Handler: name, Topic: topic, Group: o.Group, Concurrency: o.Concurrency,
	})
	if err != nil {
		return nil, err
	}
	s := &subscriber{
		stock: stock, c: c, name: name, group: o.Group, perTopic: perTopic, retry: tiered,
		schedule: o.Policy.Schedule, gate: c.gates.Add(name, o.Concurrency), calls: o.Concurrency,
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.Join(errClosed, stock.Close())
	}
	c.subscribers = append(c.subscribers, s)
	return s, nil
}

// A topicChecker is a Publisher that knows which topics of an app its backend refuses.
type topicChecker interface{ CheckTopic(topic string) error }

func (c *connection) checkTopic(topic string) error {
	err := options.Topic(topic)
	if checker, can := c.relay.config.Publisher.(topicChecker); can && err == nil {
		err = checker.CheckTopic(topic)
	}
	return err
}

// Middleware implements retry.Connection.
func (c *connection) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return c.retry.Dispatch(h)
}

// Publisher implements retry.Connection.
func (c *connection) Publisher() message.Publisher {
	publisher := c.relay.config.AppPublisher
	if publisher == nil {
		publisher = c.relay.config.Publisher
	}
	return openPublisher{observed{publisher, &c.relay.observers, false}}
}

// Pause implements retry.Connection.
func (c *connection) Pause(handler string) error { return c.gates.Pause(handler) }

// Resume implements retry.Connection.
func (c *connection) Resume(handler string) error { return c.gates.Resume(handler) }

// Observe implements retry.Connection.
func (c *connection) Observe(observers ...retry.Observer) {
	for _, o := range observers {
		c.relay.observers.Attach(o, backend.Observed{
			System: structName(c.relay.config.Publisher), Health: c.Health, Waiting: c.relay.waiting,
			Logger: c.relay.logger, Closed: c.closing,
		})
	}
}

// Health implements retry.Connection.
func (c *connection) Health() retry.Health {
	h := retry.Health{Subscriptions: c.relay.health.Health()}
	for i, s := range h.Subscriptions {
		if s.Consuming { // one that has ended is a fault, also during a pause
			subscriptions.Describe(&h.Subscriptions[i], &c.gates)
		}
	}
	return h
}

// Close implements retry.Connection.
func (c *connection) Close() error {
	c.mu.Lock()
	subscribers, closed := c.subscribers, c.closed
	c.subscribers, c.closed = nil, true
	c.mu.Unlock()
	if closed {
		return nil
	}
	close(c.closing)
	for _, s := range subscribers {
		s.end()
	}
	<-c.unsettled.Close()
	faults := []error{c.relay.Close()}
	for _, s := range subscribers {
		if err := s.stock.Close(); err != nil {
			faults = append(faults, fmt.Errorf("cannot close the subscriber of %q: %w", s.name, err))
		}
	}
	for _, p := range []message.Publisher{c.relay.config.AppPublisher, c.relay.config.Publisher} {
		if p == nil {
			continue
		}
		if err := p.Close(); err != nil {
			faults = append(faults, fmt.Errorf("cannot close the publisher: %w", err))
		}
	}
	return errors.Join(faults...)
}
