package publisher

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A Connection is one AMQP connection for publishing, which any number of Publishers share. It reconnects by itself. All its
// methods are safe for concurrent use.
type Connection struct {
	link *link

	mu         sync.Mutex
	closed     bool // no more Publishers
	publishers map[*Publisher]struct{}
}

// Open connects to the broker. It returns an error when the config has faults or when it cannot connect, for example because the
// password is wrong or the broker does not answer within 30 s (or the connection_timeout of the URI). A nil logger means no logs.
func Open(config ConnectionConfig, logger watermill.LoggerAdapter) (*Connection, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	own := config.dial().Own(connectionName)
	config.AMQP, config.TLS = own.AMQP, own.TLS
	l := newLink(config, logger.With(watermill.LogFields{"broker": own.Place(), "connection": "publishing"}))
	if err := l.start(); err != nil {
		l.close()
		return nil, err
	}
	return &Connection{link: l, publishers: make(map[*Publisher]struct{})}, nil
}

// Close closes all Publishers of the connection: they refuse new messages. It waits for the messages in flight until their
// deadlines, and then closes the connection. It may be called several times, and waits each time. It returns nil. It does not wait
// for Config.DeclareExchange and Config.Redeclare.
func (c *Connection) Close() error {
	c.mu.Lock()
	c.closed = true
	open := make([]*Publisher, 0, len(c.publishers))
	for p := range c.publishers {
		open = append(open, p)
	}
	c.mu.Unlock()
	for _, p := range open {
		p.calls.close()
	}
	for _, p := range open {
		p.calls.wait()
	}
	c.link.close()
	return nil
}

// Channel opens a channel of the caller's own on the connection, for what does not harm the messages in flight, such as
// declarations. Close it after use. It ends with the connection. Channel returns an error that wraps ErrNotConnected, at once,
// while there is no connection, and one that wraps ErrBlocked while the broker blocks the connection: the broker then reads
// nothing. The end of ctx ends the wait for the broker's answer.
func (c *Connection) Channel(ctx context.Context) (*amqp091.Channel, error) {
	current, err := c.link.now()
	if err != nil {
		return nil, err
	}
	if current.Blocked.Load() {
		return nil, ErrBlocked
	}
	type result struct {
		channel *amqp091.Channel
		err     error
	}
	opened := make(chan result)
	go func() {
		channel, err := current.Client.Channel()
		select {
		case opened <- result{channel, err}:
		case <-ctx.Done():
			if err == nil {
				_ = channel.Close()
			}
		}
	}()
	select {
	case r := <-opened:
		if r.err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotConnected, r.err)
		}
		return r.channel, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ServerVersion returns the version that the broker has sent, such as "4.0.5", or an empty string while there is no connection.
func (c *Connection) ServerVersion() string {
	current, err := c.link.now()
	if err != nil {
		return ""
	}
	return current.Version()
}

// add reports whether the Publisher may begin.
func (c *Connection) add(p *Publisher) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.publishers[p] = struct{}{}
	}
	return !c.closed
}

func (c *Connection) remove(p *Publisher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.publishers, p)
}
