package wire

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/tasks"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// A Link is one AMQP connection that is kept open: when it is lost, the link opens another one after a pause. It is
// safe for concurrent use.
type Link struct {
	config Config
	name   string
	logger watermill.LoggerAdapter
	state  atomic.Pointer[State]

	tasks      *tasks.Tasks
	reconnects atomic.Int64
}

// A State is what a link has at one moment. It is replaced, never changed.
type State struct {
	Connection *Connection   // nil: there is none
	Cause      error         // why there is none
	Changed    chan struct{} // closed when another State has replaced this one

	since    time.Time // since when there is a connection, or none
	failed   error     // the last cause
	failedAt time.Time
}

// OpenLink connects to the broker. It returns an error when the config has faults or when it cannot connect, for
// example because the password is wrong or the broker does not answer within 30 s (or the connection_timeout of the
// URI). The name is the connection_name, unless the app has set one. A nil logger means no logs.
func OpenLink(config Config, name string, logger watermill.LoggerAdapter) (*Link, error) {
	if err := errors.Join(config.Faults()...); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	l := &Link{config: config.Own(name), name: name, logger: logger.With(watermill.LogFields{"broker": config.Place()}),
		tasks: tasks.New(context.Background())}
	first, err := l.connect()
	if err != nil {
		l.tasks.Close()
		return nil, err
	}
	l.setState(&State{Connection: first})
	l.tasks.Go(func() { l.supervise(first) })
	return l, nil
}

// Close closes the connection, and waits until it is closed. It may be called several times.
func (l *Link) Close() { l.tasks.Close() }

// State returns what the link has now. It costs one atomic load.
func (l *Link) State() *State { return l.state.Load() }

// Now returns the connection in use, or an error that wraps publish.ErrNotConnected.
func (l *Link) Now() (*Connection, error) {
	state := l.State()
	switch {
	case state.Connection == nil:
		return nil, fmt.Errorf("%w: %w", publish.ErrNotConnected, state.Cause)
	case state.Connection.Client.IsClosed():
		return nil, publish.ErrNotConnected
	}
	return state.Connection, nil
}

// Await waits for a connection. It returns nil when stop is closed.
func (l *Link) Await(stop <-chan struct{}) *Connection {
	for {
		state := l.State()
		if state.Connection != nil && !state.Connection.Client.IsClosed() {
			return state.Connection
		}
		select {
		case <-state.Changed:
		case <-stop:
			return nil
		}
	}
}

// Health returns the state of the connection under this name. It does not wait for the broker.
func (l *Link) Health(name string) retry.LinkHealth {
	state := l.State()
	h := retry.LinkHealth{
		Name: name, Connected: state.Connection != nil, Since: state.since, Reconnects: int(l.reconnects.Load()),
		Blocked:     state.Connection != nil && state.Connection.Blocked.Load(),
		LastErrorAt: state.failedAt,
	}
	if state.failed != nil {
		h.LastError = state.failed.Error()
	}
	return h
}

func (l *Link) connect() (*Connection, error) {
	return l.config.Connect(l.tasks.Context, l.name, l.reportBlocked)
}

func (l *Link) reportBlocked(block amqp091.Blocking) {
	if block.Active {
		l.logger.Error("The broker has blocked the connection", errors.New(block.Reason), nil)
	} else {
		l.logger.Info("The broker has unblocked the connection", nil)
	}
}

// supervise keeps a connection open until Close.
func (l *Link) supervise(c *Connection) {
	for c != nil {
		select {
		case <-c.Closed:
		case <-l.tasks.Context.Done():
			c.Close()
			<-c.Closed
			l.setState(&State{Cause: errClosed})
			return
		}
		cause := c.CloseReason()
		l.setState(&State{Cause: cause})
		l.logger.Error("Connection lost, reconnecting", cause, nil)
		c = l.reconnect()
	}
}

var errClosed = errors.New("the connection is closed")

// reconnect returns nil when the link is closed. Its pauses begin anew after each connection: a message that ends one
// at each delivery delays the others until the delivery limit of its queue.
func (l *Link) reconnect() *Connection {
	pause := l.config.Pause()
	for {
		if pauses.Sleep(l.tasks.Context, pause.Next()) != nil {
			l.setState(&State{Cause: errClosed})
			return nil
		}
		c, err := l.connect()
		if err == nil {
			l.reconnects.Add(1)
			l.setState(&State{Connection: c})
			l.logger.Info("Connected again", nil)
			return c
		}
		if l.tasks.Context.Err() == nil {
			l.setState(&State{Cause: err})
			l.logger.Error("Cannot reconnect", err, watermill.LogFields{"next_attempt_within": pause.Bound().String()})
		}
	}
}

// setState is called by one goroutine at a time. Close is no failure.
func (l *Link) setState(next *State) {
	next.Changed, next.since = make(chan struct{}), time.Now()
	old := l.state.Load()
	if old != nil {
		next.failed, next.failedAt = old.failed, old.failedAt
		if (old.Connection == nil) == (next.Connection == nil) {
			next.since = old.since
		}
	}
	if next.Cause != nil && l.tasks.Context.Err() == nil {
		next.failed, next.failedAt = next.Cause, time.Now()
	}
	l.state.Store(next)
	if old != nil {
		close(old.Changed)
	}
}
