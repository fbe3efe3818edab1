package subscriber

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/retry"
)

// A Connection is one AMQP connection for consuming, which any number of Subscribers share. It reconnects by itself.
// All its methods are safe for concurrent use.
type Connection struct {
	link   *wire.Link
	config wire.Config
	logger watermill.LoggerAdapter // of moving
	close  sync.Once

	// moving is the connection that moves messages to partitions: the broker blocks one that publishes, acks included, in
	// an alarm. Nil: nothing has been moved.
	moving  atomic.Pointer[wire.Link]
	opening chan struct{} // has a value while the link is opened or closed

	mu            sync.Mutex
	closed        bool // no more subscriptions
	subscriptions []*subscription
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
	return &Connection{link: link, config: config, opening: make(chan struct{}, 1),
		logger: logger.With(watermill.LogFields{"connection": "moving"})}, nil
}

// Close closes all Subscribers of the connection, as Subscriber.Close does, and then the connection. It may be called
// several times, and waits each time. It returns nil. It does not wait for Handler.Declare.
func (c *Connection) Close() error {
	c.close.Do(func() {
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		c.end(nil)
		c.opening <- struct{}{}
		defer func() { <-c.opening }()
		if moving := c.moving.Load(); moving != nil {
			moving.Close()
		}
		c.link.Close()
	})
	return nil
}

// mover returns the connection that moves messages to partitions, and opens it for the first.
func (c *Connection) mover(stop <-chan struct{}) (*wire.Connection, error) {
	c.opening <- struct{}{}
	defer func() { <-c.opening }()
	select {
	case <-stop: // else it would be opened after Close
		return nil, ErrClosed
	default:
	}
	if c.moving.Load() == nil {
		link, err := wire.OpenLink(c.config, "watermill-retry mover", c.logger)
		if err != nil {
			return nil, err
		}
		c.moving.Store(link)
	}
	if current := c.moving.Load().Await(stop); current != nil {
		return current, nil
	}
	return nil, ErrClosed
}

// end stops the subscriptions of a Subscriber, and waits for their ends. Nil: of all.
func (c *Connection) end(of *Subscriber) {
	c.mu.Lock()
	open := slices.Clone(c.subscriptions)
	c.mu.Unlock()
	if of != nil {
		open = slices.DeleteFunc(open, func(s *subscription) bool { return s.subscriber != of })
	}
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
	if moving := c.moving.Load(); moving != nil {
		h.Links = append(h.Links, moving.Health("moving"))
	}
	for _, s := range c.subscriptions {
		h.Subscriptions = append(h.Subscriptions, s.health())
	}
	return h
}

// add reports whether the subscription may begin.
func (c *Connection) add(s *subscription) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || s.subscriber.isClosed() {
		return false
	}
	c.subscriptions = append(c.subscriptions, s)
	return true
}

func (c *Connection) remove(s *subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscriptions = slices.DeleteFunc(c.subscriptions, func(other *subscription) bool { return other == s })
}
