package publisher

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// A state is what the lanes and callers see of the connection. It is replaced, never changed.
type state struct {
	connection *connection   // nil: there is none
	session    *session      // nil: there is none yet on the connection
	cause      error         // why there is no connection
	changed    chan struct{} // closed when another state has replaced this one
}

func (p *Publisher) setState(next *state) {
	next.changed = make(chan struct{})
	if old := p.state.Swap(next); old != nil {
		close(old.changed)
	}
}

// connect opens a connection with a session on it.
func (p *Publisher) connect(ctx context.Context) (*connection, *session, error) {
	c, err := p.dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	s, err := p.open(c)
	if err != nil {
		c.close()
		return nil, nil, err
	}
	return c, s, nil
}

// supervise keeps a session open until the publisher is closed.
func (p *Publisher) supervise(c *connection, s *session) {
	for {
		cause := p.serve(c, s)
		p.setState(&state{cause: cause})
		if p.ctx.Err() != nil {
			return
		}
		p.logger.Error("Connection lost, reconnecting", cause, nil)
		if c, s = p.reconnect(); c == nil {
			return
		}
		p.logger.Info("Connected again", nil)
	}
}

// serve keeps a session on the connection, and returns when the connection is gone.
func (p *Publisher) serve(c *connection, s *session) error {
	for {
		p.setState(&state{connection: c, session: s})
		select {
		case <-s.retired:
			next, err := p.open(c)
			if err != nil {
				c.close()
				return err
			}
			p.logger.Info("Opened another channel, the broker refuses messages on the last one", nil)
			retired := s
			p.workers.Go(func() { retired.outlive(p.config.ConfirmTimeout) })
			s = next
			continue
		case <-s.gone:
		case <-s.givenUp:
			p.workers.Go(s.end)
		case <-p.ctx.Done():
			c.close()
			return ErrClosed
		}
		if c.client.IsClosed() {
			return c.lost()
		}
		p.logger.Info("Opening another channel", watermill.LogFields{"reason": s.why()})
		p.setState(&state{connection: c})
		var err error
		if s, err = p.open(c); err != nil {
			c.close()
			return err
		}
	}
}

// reconnect returns nothing when the publisher is closed.
func (p *Publisher) reconnect() (*connection, *session) {
	pause := p.config.ReconnectInitial
	for {
		select {
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		case <-p.ctx.Done():
			return nil, nil
		}
		c, s, err := p.connect(p.ctx)
		if err == nil {
			return c, s
		}
		if p.ctx.Err() != nil {
			return nil, nil
		}
		pause = min(2*pause, p.config.ReconnectMax)
		p.logger.Error("Cannot reconnect", err, watermill.LogFields{"next_attempt_within": pause.String()})
		p.setState(&state{cause: err})
	}
}
