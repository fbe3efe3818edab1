package publisher

import (
	"errors"
	"runtime"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// maxBatch bounds how many callers wait for one write.
const maxBatch = 256

// A writer is the only one that writes messages, but for those in quarantine. Whatever arrives while it is busy
// leaves with the next write to the socket.
type writer struct {
	link     *link
	exchange string
	queue    chan *request

	socket *socket    // corked, while there is a batch
	batch  []*request // handed to amqp091-go, in the socket's buffer
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
		case <-w.link.ctx.Done():
			drain(w.queue)
			return
		}
	}
}

func (w *writer) next() *request {
	if len(w.batch) >= maxBatch || w.socket != nil && w.socket.full() {
		return nil
	}
	select {
	case r := <-w.queue:
		return r
	default:
	}
	// Callers whose confirms have just come may have another message: let them run before the write, not after it.
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
		state := w.link.state.Load()
		if r.state.Load() == abandoned || state.connection == nil {
			r.reportFailure(ErrNotConnected, state.cause)
			return
		}
		if s := state.session; s != nil && !s.over() {
			if w.socket != s.connection.socket {
				w.flush()
				w.socket = s.connection.socket
				w.socket.cork()
			}
			confirm, err := s.put(w.exchange, r)
			if err == nil {
				r.session, r.confirm = s, confirm
				w.batch = append(w.batch, r)
				return
			}
			if !errors.Is(err, amqp091.ErrClosed) {
				_ = s.connection.socket.Close() // a part of the message may have been written
				r.reportFailure(ErrNotConnected, err)
				return
			}
		}
		// The session is over, this message never went there: it may go to the next one.
		w.flush()
		select {
		case <-state.changed:
		case <-w.link.ctx.Done():
			r.reportFailure(ErrClosed, nil)
			return
		}
	}
}

func (w *writer) flush() {
	if w.socket == nil {
		return
	}
	w.socket.uncork()
	w.socket = nil
	for i, r := range w.batch {
		r.reportWritten()
		w.batch[i] = nil
	}
	w.batch = w.batch[:0]
}

// drain fails what is left in a lane; nothing is added any more.
func drain(lane chan *request) {
	for {
		select {
		case r := <-lane:
			r.reportFailure(ErrClosed, nil)
		default:
			return
		}
	}
}
