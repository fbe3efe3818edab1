package publisher

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/dial"
)

// A link keeps a connection to the broker, with a session on it, until it is closed.
type link struct {
	config Config
	logger watermill.LoggerAdapter
	state  atomic.Pointer[linkState]

	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	workers sync.WaitGroup // close waits for them
}

// A linkState is the connection and session in use. It is replaced, never changed.
type linkState struct {
	connection *connection   // nil: there is none
	session    *session      // nil: there is none on the connection
	cause      error         // why there is no connection
	changed    chan struct{} // closed when another linkState has replaced this one
}

func newLink(config Config, logger watermill.LoggerAdapter) *link {
	l := &link{config: config, logger: logger}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// start connects for the first time. After an error, the link still has to be closed.
func (l *link) start() error {
	c, s, err := l.connect()
	if err != nil {
		return err
	}
	l.setState(&linkState{connection: c, session: s})
	l.workers.Go(func() { l.supervise(c, s) })
	return nil
}

// close ends the workers and the connection, and waits for them.
func (l *link) close() {
	l.cancel()
	l.workers.Wait()
}

func (l *link) setState(next *linkState) {
	next.changed = make(chan struct{})
	if old := l.state.Swap(next); old != nil {
		close(old.changed)
	}
}

// connect opens a connection with a session on it.
func (l *link) connect() (*connection, *session, error) {
	c, err := l.dial()
	if err != nil {
		return nil, nil, err
	}
	s, err := l.open(c)
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, s, nil
}

// dial opens a connection.
func (l *link) dial() (*connection, error) {
	opened, err := l.config.dial().Connect(l.ctx, l.config.connectionName(), l.config.WriteTimeout)
	if err != nil {
		return nil, err
	}
	c := newConnection(opened)
	l.workers.Go(func() { c.watchBlocked(l.logger) })
	l.workers.Go(c.WatchClosed)
	return c, nil
}

// open opens a session on the connection.
func (l *link) open(c *connection) (*session, error) {
	channel, err := c.channel()
	if err != nil {
		return nil, err
	}
	s := newSession(c, channel, l.config.MaxInFlight)
	l.workers.Go(s.watchClosed)
	return s, nil
}

// supervise keeps a session open until the link is closed.
func (l *link) supervise(c *connection, s *session) {
	for {
		cause := l.serve(c, s)
		l.setState(&linkState{cause: cause})
		if l.ctx.Err() != nil {
			return
		}
		l.logger.Error("Connection lost, reconnecting", cause, nil)
		if c, s = l.reconnect(); c == nil {
			return
		}
		l.logger.Info("Connected again", nil)
	}
}

// serve keeps a session open on the connection. It returns when the connection is closed, with the reason.
func (l *link) serve(c *connection, s *session) error {
	for {
		l.setState(&linkState{connection: c, session: s})
		select {
		case <-s.retired:
			next, err := l.open(c)
			if err != nil {
				c.Close()
				return err
			}
			l.logger.Info("Opened another channel, because the broker nacks messages on the previous one", nil)
			retired := s
			l.workers.Go(func() { retired.closeAfter(l.config.ConfirmTimeout) })
			s = next
			continue
		case <-s.closed:
		case <-s.givenUp:
			l.workers.Go(s.close)
		case <-l.ctx.Done():
			c.Close()
			return ErrClosed
		}
		if c.Client.IsClosed() {
			return c.CloseReason()
		}
		l.logger.Info("Opening another channel", watermill.LogFields{"reason": s.endReason()})
		l.setState(&linkState{connection: c})
		var err error
		if s, err = l.open(c); err != nil {
			c.Close()
			return err
		}
	}
}

// reconnect returns nil when the link is closed.
func (l *link) reconnect() (*connection, *session) {
	backoff := dial.Backoff{Initial: l.config.ReconnectInitial, Max: l.config.ReconnectMax}
	for {
		select {
		case <-time.After(backoff.Next()):
		case <-l.ctx.Done():
			return nil, nil
		}
		c, s, err := l.connect()
		if err == nil {
			return c, s
		}
		if l.ctx.Err() != nil {
			return nil, nil
		}
		l.logger.Error("Cannot reconnect", err, watermill.LogFields{"next_attempt_within": backoff.Bound().String()})
		l.setState(&linkState{cause: err})
	}
}
