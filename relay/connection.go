package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/options"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// connection is the retry.Connection of Connect.
type connection struct {
	relay   *relay
	retry   *middleware.TieredRetry // with the policy of the connection
	gates   gate.Handlers
	faults  faults.Handlers
	closing chan struct{} // closed by Close

	mu          sync.Mutex
	groups      map[string]string // by name
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
//   - AddConsumerHandler, AddHandler: a handler needs one name in all processes of the app, because its topics are
//     named after it. Its return topic is "<Prefix>.return.<name>".
//   - Subscriber: it can be subscribed to several topics. For each topic the handler is "<name>.<topic>" in the failure
//     record, and so in the names of the return topic and of the dead-letter topic: "<Prefix>.return.<name>.<topic>"
//     and "<Prefix>.dead.<name>.<topic>". Subscribe returns an error for a topic that a subscriber of the same name is
//     subscribed to and has not ended: on a Pub/Sub without consumer groups each of the two would get every message and
//     every retry.
//   - Pause: the Pub/Sub goes on delivering: the next message waits before the handler. After Config.MaxHop, 20 seconds
//     by default, it is nacked, and waits again when the Pub/Sub redelivers it: a Pub/Sub that counts redeliveries
//     counts each of them, and one that puts a nacked message behind the others changes the order.
//   - Health has no links: the subscribers have their own connections. A subscription is not consuming after its
//     subscriber has closed the channel.
//   - Close also closes the subscribers of the handlers, the AppPublisher and Config.Publisher.
func Connect(config Config, logger watermill.LoggerAdapter) (retry.Connection, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid relay.Config: %w", err)
	}
	c := &connection{relay: newRelay(config, logger), groups: map[string]string{}, closing: make(chan struct{})}
	var err error
	if c.retry, err = c.newRetry(c.relay.config.Policy); err != nil {
		return nil, err
	}
	return c, nil
}

// checkOptions refuses what only RabbitMQ has.
func checkOptions(options retry.Options) error {
	var faults []error
	if options.Concurrency > 1 {
		faults = append(faults, fmt.Errorf("Concurrency is %d: this Pub/Sub delivers one message at a time for each "+
			"subscription, so it must be 0 or 1. Only where NewSubscriber makes Group the consumer group of the "+
			"subscriber, add the handler several times, with different names and the same Group. gochannel has no "+
			"consumer groups: there every handler would get every message", options.Concurrency))
	}
	if options.Prefetch != 0 {
		faults = append(faults, fmt.Errorf("Prefetch is %d: only RabbitMQ has it: remove it; this Pub/Sub delivers "+
			"one message at a time for each subscription", options.Prefetch))
	}
	if options.CloseTimeout != 0 {
		faults = append(faults, fmt.Errorf("CloseTimeout is %v: only RabbitMQ has it: remove it; the Pub/Sub's own "+
			"subscriber decides when messages in flight end", options.CloseTimeout))
	}
	if options.OrderKey != nil {
		faults = append(faults, errors.New("OrderKey is set: only RabbitMQ has it: remove it; this Pub/Sub delivers "+
			"one message at a time for each subscription"))
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
	c.faults.AddNil(name, handler == nil)
	subscriber := c.handlerSubscriber(name, options)
	added := router.AddConsumerHandler(name, topic, subscriber, handler)
	added.AddMiddleware(c.Middleware)
	return added
}

// AddHandler implements retry.Connection.
func (c *connection) AddHandler(
	router *message.Router, name, subscribeTopic, publishTopic string, handler message.HandlerFunc,
	options ...retry.Options,
) *message.Handler {
	c.faults.AddNil(name, handler == nil)
	subscriber := c.handlerSubscriber(name, options)
	added := router.AddHandler(name, subscribeTopic, subscriber, publishTopic, c.Publisher(), handler)
	added.AddMiddleware(c.Middleware)
	return added
}

// handlerSubscriber returns the subscriber of a handler of one topic. With faults, all subscribers of the connection
// refuse to subscribe.
func (c *connection) handlerSubscriber(name string, given []retry.Options) message.Subscriber {
	s, err := c.subscriber(name, false, given)
	if err == nil {
		c.relay.handlers.add(name)
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
	s, err := c.subscriber(name, true, options)
	if err != nil {
		return nil, fmt.Errorf("subscriber %q: %w", name, err)
	}
	return s, nil
}

func (c *connection) subscriber(name string, perTopic bool, given []retry.Options) (*subscriber, error) {
	o, err := options.One(given, &c.relay.config.Policy)
	if err = errors.Join(err, checkOptions(o)); err != nil {
		return nil, err
	}
	if err := c.claim(name, o.Group); err != nil {
		return nil, err
	}
	tiered, err := c.newRetry(*o.Policy)
	if err != nil {
		return nil, err
	}
	stock, err := c.relay.config.newSubscriber(SubscriberParams{Handler: name, Group: o.Group})
	if err != nil {
		return nil, err
	}
	s := &subscriber{stock: stock, c: c, name: name, perTopic: perTopic, retry: tiered, gate: c.gates.Add(name, 1)}
	s.ctx, s.end = context.WithCancel(context.Background())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.Join(errClosed, stock.Close())
	}
	c.subscribers = append(c.subscribers, s)
	return s, nil
}

// claim refuses a name that is in use with another group: both groups would get all retries.
func (c *connection) claim(name, group string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name == "" {
		return errors.New("the name is empty, and the return topic is named after it: give it a name")
	}
	if other, taken := c.groups[name]; taken && other != group {
		return fmt.Errorf("the name is in use with group %q, and now with group %q, so both would get the retries: "+
			"use another name", other, group)
	}
	c.groups[name] = group
	return nil
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
		c.relay.observers.Attach(o, retry.Observed{
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
			at := &h.Subscriptions[i]
			at.Paused, at.PausedSince, at.PausedLimit, at.Holding = c.gates.State(s.Name)
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
