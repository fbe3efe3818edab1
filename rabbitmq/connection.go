package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

var _ retry.Connection = (*Connection)(nil)

// ErrClosed is returned by Connection.Subscriber, and by the subscribers and the publisher of a Connection, when the
// Connection is closed.
var ErrClosed = errors.New("the connection is closed: make a new one with Connect")

// Connection is what Connect returns: two connections to the broker, for any number of handlers, consumer groups and
// schedules. Both reconnect by themselves. It is safe for concurrent use.
type Connection struct {
	core       *core
	logger     watermill.LoggerAdapter
	consuming  *subscriber.Connection
	publishing *publisher.Connection
	declarer   *declarer
	overdue    *overdue // nil without a management API
	lookout    *lookout
	copies     copies
	app        appPublisher
	fallback   *middleware.TieredRetry // gets messages of other subscribers
	gates      gate.Handlers
	faults     faults.Handlers

	stopping context.Context // ends with the beginning of Close
	stop     context.CancelFunc
	closing  sync.Once
	mu       sync.Mutex
	closed   bool
}

// setUp makes what all handlers share.
func (c *Connection) setUp() error {
	c.copies = newCopies(c.core, c.publishing)
	c.app = newAppPublisher(c.core, c.publishing)
	var err error
	own := backend{c.copies, c.core.policy.TierGroup, c.sourceOf(c)}
	c.fallback, err = middleware.New(withLadder(c.core.policy), own, c.logger)
	return err
}

// watch prepares the looks at what waits, and begins to look for overdue tiers, where there is an address of the
// management API.
func (c *Connection) watch(manage string) error {
	c.lookout = newLookout(lookoutConfig{
		Prefix: c.core.prefix, WorkQueues: c.declarer.workQueues,
		// It does not end with a look: the goroutine that waits for the channel must not be left behind by each of
		// them.
		Channel: func() (*amqp091.Channel, error) { return c.publishing.Channel(c.stopping) },
	})
	if manage == "" {
		return nil
	}
	uri := c.core.address()
	client, err := management.New(manage, management.Broker{
		Vhost: uri.Vhost, User: uri.Username, Password: uri.Password, TLS: c.core.app.TLS.Clone(),
	})
	if err != nil {
		return fmt.Errorf("Management: %w", err)
	}
	c.lookout.config.Read = client.Depths
	c.overdue = watchOverdue(client.Queues, c.declarer.waiting, c.logger)
	return nil
}

// sourceOf is where the messages of a handler come from.
func (c *Connection) sourceOf(owner any) *middleware.Source {
	return &middleware.Source{
		Owner: owner, Name: "the connection to " + c.core.broker(),
		Subscribe: "add the handler with its AddConsumerHandler or AddHandler, or with a subscriber of its method " +
			"Subscriber",
	}
}

// AddConsumerHandler adds a handler with retries to the router, as the router's own AddConsumerHandler does. At most
// one Options can be given. The retry middleware is the handler's first: add the app's other middlewares to the handler
// that is returned.
//
// Options, topics and functions that are wrong are an error of the router's Run. It has the faults of all handlers
// that were added, joined, and nothing is consumed: every Subscribe of this Connection returns them, also later.
// Correct them, and call Connect again.
func (c *Connection) AddConsumerHandler(
	router *message.Router, name, topic string, handler message.NoPublishHandlerFunc, options ...retry.Options,
) *message.Handler {
	c.faults.AddNil(name, handler == nil)
	subscriber, tiered := c.handlerOf(name, topic, options)
	added := router.AddConsumerHandler(name, topic, subscriber, handler)
	added.AddMiddleware(tiered)
	return added
}

// AddHandler is AddConsumerHandler for a handler that produces messages. They are published with Publisher. If one of
// them cannot be published, the message has failed with retry.ErrNotPublished, and is retried.
func (c *Connection) AddHandler(
	router *message.Router, name, subscribeTopic, publishTopic string, handler message.HandlerFunc,
	options ...retry.Options,
) *message.Handler {
	c.faults.AddNil(name, handler == nil)
	subscriber, tiered := c.handlerOf(name, subscribeTopic, options)
	if err := c.app.check(publishTopic); err != nil {
		c.faults.Add(faults.OfHandler(name, err))
	}
	added := router.AddHandler(name, subscribeTopic, subscriber, publishTopic, c.app, handler)
	added.AddMiddleware(tiered)
	return added
}

// handlerOf returns the subscriber and the middleware of a handler whose topic is known. With faults, all subscribers
// of the connection refuse to subscribe.
func (c *Connection) handlerOf(
	name, topic string, options []retry.Options,
) (message.Subscriber, message.HandlerMiddleware) {
	h, err := c.newHandler(name, options)
	if err == nil {
		err = h.add(topic)
	}
	if err != nil {
		if !errors.Is(err, ErrClosed) {
			c.faults.Add(err)
		}
		return refusedSubscriber{c, name}, c.Middleware
	}
	return h, h.retry.Middleware
}

// Subscriber returns the subscriber of a handler, for code that adds handlers by itself: the processors of
// components/cqrs, Requeuer, FanIn. Add Middleware to its handlers. The name is used in logs and in Health. The
// subscriber's Close ends its subscriptions only, and waits for messages in flight for up to Options.CloseTimeout.
// Errors of a topic are those of Subscribe, for example a Group without an exchange.
func (c *Connection) Subscriber(name string, options ...retry.Options) (message.Subscriber, error) {
	h, err := c.newHandler(name, options)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Middleware is the retry middleware for handlers with a Subscriber of this connection, for a handler's or a router's
// AddMiddleware. Each message is retried with the schedule of its own subscriber, and comes back to its own queue.
// Messages of other subscribers are refused: each is held, and the log has the reason.
func (c *Connection) Middleware(handler message.HandlerFunc) message.HandlerFunc {
	return c.fallback.Dispatch(handler)
}

// Publisher returns the publisher of the app's own messages. The topics are those of the app's configuration: the
// exchange is that of Exchange.GenerateName, and the routing key that of Publish.GenerateRoutingKey. Before the first
// publish to an exchange, and again after a reconnect, the app's topology builder declares it, unless VerifyOnly is
// set.
//
// Publish returns nil only after the broker has routed and confirmed all messages. Otherwise the error is a
// *publish.Error, or has several. It wraps publish.ErrUnroutable for a message that no queue got: a subscriber of the
// topic must run once first, because it declares the queue. It wraps ErrClosed after Close of the Connection. Close
// does nothing, because the router closes the publishers of its handlers: Close of the Connection closes it.
func (c *Connection) Publisher() message.Publisher { return c.app }

// Pause makes a handler take no new messages, until Resume. Its consumers are cancelled, and stay so across a
// reconnect. Messages that were fetched and not handed to the handler go back to the queue in their order; before
// RabbitMQ 4.3 that counts a delivery of them. With an OrderKey and a limit for another reason, the few that were
// fetched are handed out. Messages in flight go on and are acked. Then no message is unacknowledged. The name is that
// of the handler, or what Subscriber was called with. Pause does not wait for the broker. It returns an error for an
// unknown name, which lists the names, and ErrClosed after Close.
func (c *Connection) Pause(handler string) error { return c.whileOpen(handler, c.gates.Pause) }

// Resume ends a Pause. A handler that is not paused is no error. A pause for another reason, which Health names, stays.
func (c *Connection) Resume(handler string) error { return c.whileOpen(handler, c.gates.Resume) }

func (c *Connection) whileOpen(handler string, do func(string) error) error {
	if c.isClosed() {
		return faults.OfHandler(handler, ErrClosed)
	}
	return do(handler)
}

// Health returns the state of the two connections, "consuming" and "publishing", and of all subscriptions. After Close,
// the LastError of both is ErrClosed. With Config.Management it has the tiers and inboxes that are overdue. It does not
// wait for the broker.
func (c *Connection) Health() retry.Health {
	h := c.consuming.Health()
	h.Links = append(h.Links, c.publishing.Health())
	if c.isClosed() {
		for i, link := range h.Links {
			if !link.Connected {
				h.Links[i].LastError, h.Links[i].LastErrorAt = ErrClosed, link.Since
			}
		}
	}
	for i := range h.Subscriptions {
		s := &h.Subscriptions[i]
		s.Paused, s.PausedSince, s.PausedLimit, s.Holding = c.gates.State(s.Name)
	}
	h.Tiers, h.TiersError = c.overdue.health()
	return h
}

// Close ends the subscriptions, and waits for the messages in flight, for up to Options.CloseTimeout and one second
// more. Then it closes the connection for consuming, the publishers, and the connection for publishing. Close the
// router first, or let its Run return: then no messages are in flight. It may be called several times, and waits each
// time. It returns nil.
func (c *Connection) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.closing.Do(func() {
		c.overdue.close()
		_ = c.consuming.Close()
		c.declarer.close()
		_ = c.publishing.Close()
	})
	return nil
}

// consumed returns the work queues that handlers consume.
func (c *Connection) consumed() map[string]bool {
	queues := map[string]bool{}
	for _, s := range c.consuming.Health().Subscriptions {
		queues[s.Queue] = true
	}
	return queues
}

func (c *Connection) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Format implements fmt.Formatter. It prints address, prefix and schedule, without the password in the address.
func (c *Connection) Format(state fmt.State, _ rune) {
	if c == nil {
		_, _ = io.WriteString(state, "Connection(none)")
		return
	}
	_, _ = io.WriteString(state, "Connection"+c.core.description())
}
