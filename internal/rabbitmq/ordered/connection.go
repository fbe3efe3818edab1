package ordered

import (
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/retry"
)

// A Connection is one for consuming, with the AMQP connection that moves messages to partitions beside it.
type Connection struct {
	*subscriber.Connection
	config wire.Config
	logger watermill.LoggerAdapter // of moving

	// moving is apart from what consumes: the broker blocks a connection that publishes, acks included, in an alarm. Nil:
	// nothing has been moved.
	moving  atomic.Pointer[wire.Link]
	opening chan struct{} // has a value while the link is opened or closed
}

// Open connects to the broker, as subscriber.Open does.
func Open(config wire.Config, logger watermill.LoggerAdapter) (*Connection, error) {
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	consuming, err := subscriber.Open(config, logger)
	if err != nil {
		return nil, err
	}
	return &Connection{Connection: consuming, config: config, opening: make(chan struct{}, 1),
		logger: logger.With(watermill.LogFields{"connection": "moving"})}, nil
}

// Close closes all Subscribers of the connection, and then the connections. It may be called several times, and waits
// each time. It returns nil.
func (c *Connection) Close() error {
	_ = c.Connection.Close()
	c.opening <- struct{}{}
	defer func() { <-c.opening }()
	if moving := c.moving.Load(); moving != nil {
		moving.Close()
	}
	return nil
}

// mover returns the connection that moves messages to partitions, and opens it for the first.
func (c *Connection) mover(stop <-chan struct{}) (*wire.Connection, error) {
	c.opening <- struct{}{}
	defer func() { <-c.opening }()
	select {
	case <-stop: // else it would be opened after Close
		return nil, subscriber.ErrClosed
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
	return nil, subscriber.ErrClosed
}

// Health returns the state of the connections, and of the calls of Subscribe that have not ended, in their order. It
// does not wait for the broker.
func (c *Connection) Health() retry.Health {
	h := c.Connection.Health()
	if moving := c.moving.Load(); moving != nil {
		h.Links = append(h.Links, moving.Health("moving"))
	}
	return h
}

// Handlers returns what the handlers with partitions do that consume a work queue.
func (c *Connection) Handlers(queue string) (all []command.Handler) {
	for _, s := range c.ordered(queue) {
		h := command.Handler{Name: s.Config.Name}
		for _, p := range s.partitions {
			h.Partitions = append(h.Partitions, p.status())
		}
		all = append(all, h)
	}
	return all
}

// Decide ends the block of the messages with a key, on all subscriptions of the connection that consume a work queue.
// It returns how many there were. A message that is skipped becomes a dead letter; the others are handled again, as if
// they had not failed.
func (c *Connection) Decide(queue, key string, skip bool) int {
	var count atomic.Int64
	for _, s := range c.ordered(queue) {
		s.Do(func() { // it may go on when Unmarshal has not returned
			for _, p := range s.partitions {
				count.Add(int64(p.decide(key, skip)))
			}
		})
	}
	return int(count.Load())
}

func (c *Connection) ordered(queue string) (all []*subscription) {
	for _, kind := range c.Kinds(queue) {
		if p, is := kind.(*partition); is {
			all = append(all, p.of)
		}
	}
	return all
}
