package publisher

import (
	"errors"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A quarantine publishes, one at a time and on a channel of their own, messages under which the broker has closed the
// shared channel: which of them was guilty, nobody knows. Here only the guilty one can meet its end.
type quarantine struct {
	link           *link
	exchange       string
	queue          chan *request
	confirmTimeout time.Duration

	session *session // of the last message; nil: there is none
}

func (q *quarantine) run() {
	for {
		select {
		case r := <-q.queue:
			q.publish(r)
		case <-q.link.ctx.Done():
			drain(q.queue)
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
		state := q.link.state.Load()
		if r.state.Load() == abandoned || state.connection == nil {
			r.reportFailure(ErrNotConnected, state.cause)
			return
		}
		s, err := q.open(state.connection)
		if err != nil {
			r.reportFailure(ErrNotConnected, err)
			return
		}
		confirm, err := s.put(q.exchange, r)
		if errors.Is(err, amqp091.ErrClosed) && !s.connection.client.IsClosed() {
			continue // the channel was closed since the last message, and this one never went there
		}
		if err != nil {
			_ = s.connection.socket.Close() // a part of the message may have been written
			r.reportFailure(ErrNotConnected, err)
			return
		}
		r.session, r.confirm = s, confirm
		r.reportWritten() // from here on the request is the caller's
		select {
		case <-confirm.Done():
		case <-quit:
			// Were its end still to come, the next one would be taken for guilty.
			s.giveUp()
			q.link.workers.Go(s.end)
		}
		return
	}
}

// leave has the next message published on another channel.
func (q *quarantine) leave() {
	if s := q.session; s != nil && !s.over() {
		q.link.workers.Go(func() { s.outlive(q.confirmTimeout) })
	}
	q.session = nil
}

// open returns the session of the last message while it lives.
func (q *quarantine) open(c *connection) (*session, error) {
	if s := q.session; s != nil && s.connection == c && !s.over() {
		return s, nil
	}
	var err error
	q.session, err = q.link.open(c)
	return q.session, err
}
