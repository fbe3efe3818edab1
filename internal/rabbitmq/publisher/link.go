package publisher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// A link keeps a connection to the broker, with a session on it, until it is closed. It has the lanes and slots of all Publishers
// of a Connection.
type link struct {
	config ConnectionConfig
	logger watermill.LoggerAdapter
	state  atomic.Pointer[linkState]

	toWriter     chan *request
	toQuarantine chan *request
	slots        chan struct{} // one token per free slot: MaxInFlight less the messages in flight
	ids          atomic.Uint64
	reconnects   atomic.Int64

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

	since    time.Time // since when there is a connection, or none
	failed   error     // the last cause
	failedAt time.Time
}

// firstID is 36^7. Ids from there on have 8 digits, so the size of the mark is constant.
const firstID = 36 * 36 * 36 * 36 * 36 * 36 * 36

func newLink(config ConnectionConfig, logger watermill.LoggerAdapter) *link {
	l := &link{
		config:       config,
		logger:       logger,
		toWriter:     make(chan *request, config.MaxInFlight),
		toQuarantine: make(chan *request, config.MaxInFlight),
		slots:        make(chan struct{}, config.MaxInFlight),
	}
	for range config.MaxInFlight {
		l.slots <- struct{}{}
	}
	l.ids.Store(firstID + rand.Uint64N(firstID))
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// start connects for the first time, and starts the lanes. After an error, the link still has to be closed.
func (l *link) start() error {
	c, s, err := l.connect()
	if err != nil {
		return err
	}
	l.setState(&linkState{connection: c, session: s})
	l.workers.Go(func() { l.supervise(c, s) })
	l.workers.Go((&writer{link: l, queue: l.toWriter}).run)
	l.workers.Go((&quarantine{link: l, queue: l.toQuarantine}).run)
	return nil
}

// close ends the workers and the connection, and waits for them.
func (l *link) close() {
	l.cancel()
	l.workers.Wait()
}

func (l *link) setState(next *linkState) {
	next.changed, next.since = make(chan struct{}), time.Now()
	old := l.state.Load()
	if old != nil {
		next.failed, next.failedAt = old.failed, old.failedAt
		if (old.connection == nil) == (next.connection == nil) {
			next.since = old.since
		}
	}
	if next.cause != nil && l.ctx.Err() == nil {
		next.failed, next.failedAt = next.cause, time.Now()
	}
	l.state.Store(next) // only one goroutine at a time sets it
	if old != nil {
		close(old.changed)
	}
}

// now returns the connection in use, or an error that wraps ErrNotConnected.
func (l *link) now() (*connection, error) {
	state := l.state.Load()
	if state.connection == nil {
		return nil, fmt.Errorf("%w: %w", ErrNotConnected, state.cause)
	}
	return state.connection, nil
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
	opened, err := l.config.dial().Connect(l.ctx, connectionName, l.config.WriteTimeout)
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
		l.reconnects.Add(1)
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
	backoff := wire.Backoff{Initial: l.config.ReconnectInitial, Max: l.config.ReconnectMax}
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

// A connection is one AMQP connection, from its handshake to its end. A link has one after the other.
type connection struct {
	*wire.Connection
	limits limits
}

func newConnection(opened *wire.Connection) *connection {
	config := opened.Client.Config
	c := &connection{Connection: opened, limits: limits{frameMax: config.FrameSize}}
	if len(config.SASL) > 0 {
		switch auth := config.SASL[0].(type) {
		case *amqp091.PlainAuth:
			c.limits.user = auth.Username
		case *amqp091.AMQPlainAuth:
			c.limits.user = auth.Username
		}
	}
	return c
}

// watchBlocked logs when the broker blocks the connection, until the connection is closed.
func (c *connection) watchBlocked(logger watermill.LoggerAdapter) {
	c.WatchBlocked(func(block amqp091.Blocking) {
		if block.Active {
			logger.Error("The broker has blocked the connection", errors.New(block.Reason), nil)
		} else {
			logger.Info("The broker has unblocked the connection", nil)
		}
	})
}

// channel opens a channel in confirm mode.
func (c *connection) channel() (*amqp091.Channel, error) {
	return c.Channel(func(channel *amqp091.Channel) error { return channel.Confirm(false) })
}
