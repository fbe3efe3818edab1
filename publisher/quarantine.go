package publisher

import (
	"errors"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A quarantine publishes, one at a time and on a channel of their own, messages under which the broker has closed the
// shared channel: which of them was guilty, nobody knows. Here only the guilty one can meet its end.
type quarantine struct {
	p       *Publisher
	session *session // nil: none
}

func (q *quarantine) run() {
	for {
		select {
		case r := <-q.p.alone:
			q.publish(r)
		case <-q.p.ctx.Done():
			drain(q.p.alone)
			return
		}
	}
}

func (q *quarantine) publish(r *request) {
	quit, unmarked := r.quit, r.id == ""
	if unmarked {
		q.leave() // on this channel nothing else was ever published
		defer q.leave()
	}
	for {
		state := q.p.state.Load()
		if r.abandoned.Load() || state.connection == nil {
			r.fail(ErrNotConnected, state.cause)
			return
		}
		s, err := q.open(state.connection)
		if err != nil {
			r.fail(ErrNotConnected, err)
			return
		}
		confirm, err := s.put(q.p.config.Exchange, r)
		if errors.Is(err, amqp091.ErrClosed) && !s.connection.client.IsClosed() {
			continue // the channel was closed since the last message, and this one never went there
		}
		if err != nil {
			_ = s.connection.socket.Close() // a part of the message may have been written
			r.fail(ErrNotConnected, err)
			return
		}
		r.session, r.confirm = s, confirm
		r.handed() // from here on the request is the caller's
		select {
		case <-confirm.Done():
		case <-quit:
			// Were its end still to come, the next one would be taken for guilty.
			s.giveUp()
			q.p.workers.Go(s.end)
		}
		return
	}
}

// leave has the next message published on another channel.
func (q *quarantine) leave() {
	if s := q.session; s != nil && !s.over() {
		q.p.workers.Go(func() { s.outlive(q.p.config.ConfirmTimeout) })
	}
	q.session = nil
}

// open returns the session of the last message while it lives.
func (q *quarantine) open(c *connection) (*session, error) {
	if s := q.session; s != nil && s.connection == c && !s.over() {
		return s, nil
	}
	var err error
	q.session, err = q.p.open(c)
	return q.session, err
}
