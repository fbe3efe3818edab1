package subscriber

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// A Connection is one AMQP connection for consuming, which any number of Subscribers share. It reconnects by itself. All its
// methods are safe for concurrent use.
type Connection struct {
	config ConnectionConfig
	logger watermill.LoggerAdapter
	state  atomic.Pointer[connectionState]
	failed failure

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	workers sync.WaitGroup
	close   sync.Once

	reconnects atomic.Int64

	mu            sync.Mutex
	closed        bool // no more subscriptions
	subscriptions []*subscription
}

// A connectionState is replaced, never changed.
type connectionState struct {
	current *wire.Connection // nil: there is none
	cause   error            // why there is none
	since   time.Time
	changed chan struct{} // closed when another connectionState has replaced this one
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
	c := &Connection{config: config, logger: logger.With(watermill.LogFields{"broker": own.Place(), "connection": "consuming"})}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	current, err := c.connect()
	if err != nil {
		c.cancel()
		return nil, err
	}
	c.setState(&connectionState{current: current})
	c.workers.Go(func() { c.supervise(current) })
	return c, nil
}

const connectionName = "watermill-retry subscriber"

// Close closes all Subscribers of the connection, as Subscriber.Close does, and then the connection. It may be called several
// times, and waits each time. It returns nil. It does not wait for Config.Declare.
func (c *Connection) Close() error {
	c.close.Do(func() {
		c.mu.Lock()
		c.closed = true
		open := append([]*subscription(nil), c.subscriptions...)
		c.mu.Unlock()
		for _, s := range open {
			s.stop()
		}
		for _, s := range open {
			<-s.done
		}
		c.cancel()
		c.workers.Wait()
	})
	return nil
}

func (c *Connection) connect() (*wire.Connection, error) {
	current, err := c.config.dial().Connect(c.ctx, connectionName, c.config.WriteTimeout)
	if err != nil {
		return nil, err
	}
	c.workers.Go(func() { current.WatchBlocked(c.reportBlocked) })
	c.workers.Go(current.WatchClosed)
	return current, nil
}

func (c *Connection) reportBlocked(block amqp091.Blocking) {
	if block.Active {
		c.logger.Error("The broker has blocked the connection", errors.New(block.Reason), nil)
	} else {
		c.logger.Info("The broker has unblocked the connection", nil)
	}
}

// supervise keeps a connection open until Close.
func (c *Connection) supervise(current *wire.Connection) {
	for current != nil {
		select {
		case <-current.Closed:
		case <-c.ctx.Done():
			current.Close()
			c.setState(&connectionState{cause: ErrClosed})
			return
		}
		cause := current.CloseReason()
		c.lost(cause)
		c.logger.Error("Connection lost, reconnecting", cause, nil)
		current = c.reconnect()
	}
}

// reconnect returns nil when the connection is closed.
func (c *Connection) reconnect() *wire.Connection {
	pause := wire.Backoff{Initial: c.config.ReconnectInitial, Max: c.config.ReconnectMax}
	for {
		select {
		case <-time.After(pause.Next()):
		case <-c.ctx.Done():
			c.setState(&connectionState{cause: ErrClosed})
			return nil
		}
		current, err := c.connect()
		if err == nil {
			c.reconnects.Add(1)
			c.setState(&connectionState{current: current})
			c.logger.Info("Connected again", nil)
			return current
		}
		if c.ctx.Err() == nil {
			c.lost(err)
			c.logger.Error("Cannot reconnect", err, watermill.LogFields{"next_attempt_within": pause.Bound().String()})
		}
	}
}

func (c *Connection) lost(cause error) {
	c.failed.set(cause)
	c.setState(&connectionState{cause: cause})
}

func (c *Connection) setState(next *connectionState) {
	next.changed, next.since = make(chan struct{}), time.Now()
	old := c.state.Load()
	if old != nil && (old.current == nil) == (next.current == nil) {
		next.since = old.since
	}
	c.state.Store(next) // only one goroutine at a time sets it
	if old != nil {
		close(old.changed)
	}
}

// now returns the connection in use, or an error that wraps ErrNotConnected.
func (c *Connection) now() (*wire.Connection, error) {
	state := c.state.Load()
	switch {
	case state.current == nil:
		return nil, fmt.Errorf("%w: %w", ErrNotConnected, state.cause)
	case state.current.Client.IsClosed():
		return nil, ErrNotConnected
	}
	return state.current, nil
}

// await waits for a connection. It returns nil when stopping is closed.
func (c *Connection) await(stopping <-chan struct{}) *wire.Connection {
	for {
		state := c.state.Load()
		if state.current != nil && !state.current.Client.IsClosed() {
			return state.current
		}
		select {
		case <-state.changed:
		case <-stopping:
			return nil
		}
	}
}

// add reports whether the subscription may begin.
func (c *Connection) add(s *subscription) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.subscriptions = append(c.subscriptions, s)
	return true
}

func (c *Connection) remove(s *subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range c.subscriptions {
		if other == s {
			c.subscriptions = append(c.subscriptions[:i], c.subscriptions[i+1:]...)
			return
		}
	}
}
