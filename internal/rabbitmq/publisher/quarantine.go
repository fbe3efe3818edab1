package publisher

import (
	"errors"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// A quarantine publishes messages that were in flight when the broker closed the shared channel, and those that have
// closed it before. It publishes them one at a time, on a channel of its own. When the broker closes that channel, the
// message that caused the close is known.
type quarantine struct {
	connection *Connection
	queue      chan *request

	session *session // the session of the last message; nil: there is none
}

func (q *quarantine) run() {
	for {
		select {
		case r := <-q.queue:
			q.publish(r)
		case <-q.connection.ctx.Done():
			drain(q.queue)
			return
		}
	}
}

func (q *quarantine) publish(r *request) {
	quit, unmarked := r.quit, r.id == ""
	if unmarked {
		q.leave() // the channel of an unmarked message has no other messages
		defer q.leave()
	}
	for {
		state := q.connection.link.State()
		if r.state.Load() == abandoned || state.Connection == nil {
			r.report(publish.ErrNotConnected, state.Cause, true)
			return
		}
		s, err := q.open(state.Connection)
		if err != nil {
			r.report(publish.ErrNotConnected, err, true)
			return
		}
		confirm, err := s.put(r)
		if errors.Is(err, amqp091.ErrClosed) && !s.connection.Client.IsClosed() {
			continue // the channel was closed after the last message, and nothing was written to it
		}
		if err != nil {
			_ = s.connection.Socket.Close() // a part of the message may have been written
			r.report(publish.ErrNotConnected, err, false)
			return
		}
		r.session, r.confirm = s, confirm
		r.reportWritten() // the caller owns the request now
		select {
		case <-confirm.Done():
		case <-quit:
			// The broker may still close this channel because of this message. The next message needs another one.
			s.giveUp()
			q.connection.workers.Go(s.close)
			q.session = nil
		}
		return
	}
}

// leave retires the session: the next message is published on another one.
func (q *quarantine) leave() {
	if s := q.session; s != nil && !s.channel.IsClosed() {
		q.connection.workers.Go(func() { s.closeAfter(q.connection.config.ConfirmTimeout) })
	}
	q.session = nil
}

// open returns the session of the last message, or a new one when that is not usable.
func (q *quarantine) open(c *wire.Connection) (*session, error) {
	if s := q.session; s != nil && s.connection == c && s.usable() {
		return s, nil
	}
	var err error
	q.session, err = q.connection.open(c)
	return q.session, err
}
