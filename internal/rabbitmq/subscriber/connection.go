package subscriber

import (
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/retry"
)

// A Connection is one AMQP connection for consuming, which any number of Subscribers share. It reconnects by itself.
// All its methods are safe for concurrent use.
type Connection struct {
	link   *wire.Link
	config wire.Config

	mu            sync.Mutex
	closed        bool // no more subscriptions
	subscriptions []*Subscription
}

// Open connects to the broker, as wire.OpenLink does. The pause before each attempt to reconnect is also that before
// each attempt to declare and consume again. After a session that could be opened it is at most 1 s.
func Open(config wire.Config, logger watermill.LoggerAdapter) (*Connection, error) {
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	link, err := wire.OpenLink(config, "watermill-retry subscriber",
		logger.With(watermill.LogFields{"connection": "consuming"}))
	if err != nil {
		return nil, err
	}
	return &Connection{link: link, config: config}, nil
}

// Close closes all Subscribers of the connection, as Subscriber.Close does, and then the connection. It may be called
// several times, and waits each time. It returns nil. It does not wait for Handler.Declare.
func (c *Connection) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end(nil)
	c.link.Close()
	return nil
}

// Kinds returns the kind of the first loop of each subscription of a work queue.
func (c *Connection) Kinds(queue string) (all []Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.subscriptions {
		if s.Queue == queue {
			all = append(all, s.loops[0].kind)
		}
	}
	return all
}

// end stops the subscriptions of a Subscriber, and waits for their ends. Nil: of all.
func (c *Connection) end(of *Subscriber) {
	c.mu.Lock()
	open := slices.DeleteFunc(slices.Clone(c.subscriptions), func(s *Subscription) bool {
		return of != nil && s.subscriber != of
	})
	c.mu.Unlock()
	for _, s := range open {
		s.stop()
	}
	for _, s := range open {
		<-s.done
	}
}

// Health returns the state of the connection, and of the calls of Subscribe that have not ended, in their order. It
// does not wait for the broker.
func (c *Connection) Health() retry.Health {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := retry.Health{Links: []retry.LinkHealth{c.link.Health("consuming")}}
	for _, s := range c.subscriptions {
		h.Subscriptions = append(h.Subscriptions, s.health())
	}
	return h
}

// add reports whether the subscription may begin.
func (c *Connection) add(s *Subscription) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || s.subscriber.closing.Err() != nil {
		return false
	}
	c.subscriptions = append(c.subscriptions, s)
	return true
}

func (c *Connection) remove(s *Subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscriptions = slices.DeleteFunc(c.subscriptions, func(other *Subscription) bool { return other == s })
}
