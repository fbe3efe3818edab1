package door

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/ordered"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/retry"
)

var _ retry.Connection = (*Connection)(nil)

// Connection is the retry.Connection of Connect. Packages config and config/amqp3 document it.
type Connection struct {
	core       *core
	logger     watermill.LoggerAdapter
	consuming  *ordered.Connection
	publishing *publisher.Connection
	declarer   *declarer
	overdue    *overdue // nil without a management API
	lookout    *lookout
	produced   produced
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
	own := handlerBackend{c.copies, c.core.policy.TierGroup, c.sourceOf(c)}
	c.fallback, err = middleware.New(c.core.policy, own, c.logger)
	return err
}

// watch prepares the looks at what waits, and begins to look for overdue tiers, where there is an address of the
// management API.
func (c *Connection) watch(manage string) error {
	if manage == "" {
		c.lookout = newLookout(c.stopping, c.core, nil, c.publishing)
		return nil
	}
	uri := c.core.address()
	client, err := management.New(manage, management.Broker{
		Vhost: uri.Vhost, User: uri.Username, Password: uri.Password, TLS: c.core.app.TLS.Clone(),
	})
	if err != nil {
		return fmt.Errorf("Management: %w", err)
	}
	c.lookout = newLookout(c.stopping, c.core, client, c.publishing)
	c.overdue = watchOverdue(client, c.core, c.logger)
	return nil
}

// sourceOf is where the messages of a handler come from.
func (c *Connection) sourceOf(owner any) *backend.Source {
	return &backend.Source{
		Owner: owner, Name: "the connection to " + c.core.broker(),
		Subscribe: "add the handler with its AddConsumerHandler or AddHandler, or with a subscriber of its method " +
			"Subscriber",
	}
}

// AddConsumerHandler implements retry.Connection.
func (c *Connection) AddConsumerHandler(
	router *message.Router, name, topic string, handler message.NoPublishHandlerFunc, options ...retry.Options,
) *message.Handler {
	faults.CheckRouter(name, router == nil)
	c.faults.AddNil(name, handler == nil)
	subscriber := c.handlerOf(name, topic, options)
	added := router.AddConsumerHandler(name, topic, subscriber, handler)
	added.AddMiddleware(c.Middleware)
	return added
}

// AddHandler implements retry.Connection.
func (c *Connection) AddHandler(
	router *message.Router, name, subscribeTopic, publishTopic string, handler message.HandlerFunc,
	options ...retry.Options,
) *message.Handler {
	faults.CheckRouter(name, router == nil)
	c.faults.AddNil(name, handler == nil)
	subscriber := c.handlerOf(name, subscribeTopic, options)
	if err := c.app.check(publishTopic); err != nil {
		c.faults.Add(faults.OfHandler(name, err))
	}
	c.produced.add(name, publishTopic)
	producer := middleware.Producer{Publisher: c.app}
	added := router.AddHandler(name, subscribeTopic, subscriber, publishTopic, producer, handler)
	added.AddMiddleware(c.Middleware)
	return added
}

// handlerOf returns the subscriber of a handler whose topic is known. With faults, all subscribers of the connection
// refuse to subscribe.
//
// Its middleware is that of the connection, by which each message is retried as its own subscriber says. Watermill
// keeps the middlewares of a handler by its name, also when the handler has stopped: that of the connection is right
// for the one that is added under the name again.
func (c *Connection) handlerOf(name, topic string, options []retry.Options) message.Subscriber {
	h, err := c.newHandler(name, options)
	if err == nil {
		err = h.add(topic)
	} else if len(options) < 2 { // its topic can be wrong, too
		h = &handlerSubscriber{core: c.core, name: name, tiers: middleware.Tiers(c.core.policy, true)}
		if len(options) == 1 {
			h.options = options[0]
		}
		if _, wrong := h.named(topic); wrong != nil {
			err = errors.Join(err, faults.OfHandler(name, wrong))
		}
	}
	if err != nil {
		if !errors.Is(err, retry.ErrClosed) {
			c.faults.Add(err)
		}
		return refusedSubscriber{c, name}
	}
	return h
}

// Subscriber implements retry.Connection.
func (c *Connection) Subscriber(name string, options ...retry.Options) (message.Subscriber, error) {
	h, err := c.newHandler(name, options)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Middleware implements retry.Connection.
func (c *Connection) Middleware(handler message.HandlerFunc) message.HandlerFunc {
	return c.fallback.Dispatch(handler)
}

// Publisher implements retry.Connection.
func (c *Connection) Publisher() message.Publisher { return c.app }

// Pause implements retry.Connection.
func (c *Connection) Pause(handler string) error { return c.whileOpen(handler, c.gates.Pause) }

// Resume implements retry.Connection.
func (c *Connection) Resume(handler string) error { return c.whileOpen(handler, c.gates.Resume) }

func (c *Connection) whileOpen(handler string, do func(string) error) error {
	if c.isClosed() {
		return faults.OfHandler(handler, retry.ErrClosed)
	}
	return do(handler)
}

// Health implements retry.Connection. It does not wait for the broker.
func (c *Connection) Health() retry.Health {
	h := c.consuming.Health()
	h.Links = append(h.Links, c.publishing.Health())
	if c.isClosed() {
		for i, link := range h.Links {
			if !link.Connected {
				h.Links[i].LastError, h.Links[i].LastErrorAt = retry.ErrClosed.Error(), link.Since
			}
		}
	}
	for i := range h.Subscriptions {
		subscriptions.Describe(&h.Subscriptions[i], &c.gates)
	}
	h.Tiers, h.TiersError = c.overdue.health()
	return h
}

// Close implements retry.Connection.
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
