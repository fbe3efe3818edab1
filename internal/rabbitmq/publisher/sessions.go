package publisher

import (
	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// A sessionState is replaced, never changed.
type sessionState struct {
	session *session      // nil: there is none
	changed chan struct{} // closed when another sessionState has replaced this one
}

// setSession is called by one goroutine at a time.
func (c *Connection) setSession(s *session) {
	old := c.current.Swap(&sessionState{session: s, changed: make(chan struct{})})
	if old != nil {
		close(old.changed)
	}
}

func (c *Connection) firstSession() (*session, error) {
	current, err := c.link.Now()
	if err != nil {
		return nil, err
	}
	s, err := c.open(current)
	if err == nil {
		c.setSession(s)
	}
	return s, err
}

// open opens a session: a channel in confirm mode.
func (c *Connection) open(on *wire.Connection) (*session, error) {
	channel, err := on.Channel(func(channel *amqp091.Channel) error { return channel.Confirm(false) })
	if err != nil {
		return nil, err
	}
	s := newSession(on, channel, c.config.MaxInFlight)
	c.workers.Go(s.watchClosed)
	return s, nil
}

// supervise keeps a session open until Close.
func (c *Connection) supervise(s *session) {
	for s != nil {
		c.setSession(s)
		select {
		case <-s.retired:
			if next := c.replace(s); next != nil {
				s = next
				continue
			}
		case <-s.closed:
		case <-s.givenUp:
			c.workers.Go(s.close)
		case <-c.ctx.Done():
			return
		}
		if !s.connection.Client.IsClosed() {
			c.logger.Info("Opening another channel", watermill.LogFields{"reason": s.endReason()})
		}
		c.setSession(nil)
		s = c.reopen()
	}
}

// replace opens a session in place of one that is retired. It returns nil when that fails.
func (c *Connection) replace(retired *session) *session {
	next, err := c.open(retired.connection)
	c.workers.Go(func() { retired.closeAfter(c.config.ConfirmTimeout) })
	if err != nil {
		retired.connection.Close()
		return nil
	}
	c.logger.Info("Opened another channel, because the broker nacks messages on the previous one", nil)
	return next
}

// reopen opens a session, on the connection in use or on the next one. It returns nil after Close.
func (c *Connection) reopen() *session {
	pause := c.config.Wire.Pause()
	for {
		current := c.link.Await(c.ctx.Done())
		if current == nil {
			return nil
		}
		s, err := c.open(current)
		if err == nil {
			return s
		}
		if !current.Client.IsClosed() {
			c.logger.Error("Cannot open a channel, reconnecting", err, nil)
			current.Close()
		}
		if pauses.Sleep(c.ctx, pause.Next()) != nil {
			return nil
		}
	}
}
