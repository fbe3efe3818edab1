package publisher

import (
	"errors"
	"runtime"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/socket"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// maxBatch is the largest number of messages in one write to the socket.
const maxBatch = 256

// A writer writes all messages except those in quarantine. Messages that arrive during a write to the socket leave
// together with the next one.
type writer struct {
	connection *Connection
	queue      chan *request

	socket *socket.Socket // corked; nil while there is no batch
	batch  []*request     // published with amqp091-go, and still in the socket's buffer
}

func (w *writer) run() {
	for {
		select {
		case r := <-w.queue:
			for r != nil {
				w.publish(r)
				r = w.next()
			}
			w.flush()
		case <-w.connection.ctx.Done():
			drain(w.queue)
			return
		}
	}
}

func (w *writer) next() *request {
	if len(w.batch) >= maxBatch || w.socket != nil && w.socket.Full() {
		return nil
	}
	select {
	case r := <-w.queue:
		return r
	default:
	}
	// Callers whose messages were just confirmed may publish the next one. Let them run before the write, not after it.
	runtime.Gosched()
	select {
	case r := <-w.queue:
		return r
	default:
		return nil
	}
}

func (w *writer) publish(r *request) {
	for {
		state := w.connection.link.State()
		if r.state.Load() == abandoned || state.Connection == nil {
			r.report(publish.ErrNotConnected, state.Cause, true)
			return
		}
		current := w.connection.current.Load()
		if s := current.session; s != nil && s.usable() {
			if w.socket != s.connection.Socket {
				w.flush()
				w.socket = s.connection.Socket
				w.socket.Cork()
			}
			confirm, err := s.put(r)
			if err == nil {
				r.session, r.confirm = s, confirm
				w.batch = append(w.batch, r)
				return
			}
			if !errors.Is(err, amqp091.ErrClosed) {
				_ = s.connection.Socket.Close() // a part of the message may have been written
				r.report(publish.ErrNotConnected, err, false)
				return
			}
		}
		// The session is not usable, and nothing was written to it. The message goes to the next session.
		w.flush()
		select {
		case <-current.changed:
		case <-state.Changed:
		case <-w.connection.ctx.Done():
			r.report(retry.ErrClosed, nil, true)
			return
		}
	}
}

func (w *writer) flush() {
	if w.socket == nil {
		return
	}
	w.socket.Uncork()
	w.socket = nil
	for i, r := range w.batch {
		r.reportWritten()
		w.batch[i] = nil
	}
	w.batch = w.batch[:0]
}

// drain fails the requests that are left in a channel. It is called when no more are sent.
func drain(from chan *request) {
	for {
		select {
		case r := <-from:
			r.report(retry.ErrClosed, nil, true)
		default:
			return
		}
	}
}
