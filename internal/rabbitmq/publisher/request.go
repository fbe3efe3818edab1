package publisher

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
)

// A request is one message on its way. Its caller owns it, except between send and the token in done: then the writer
// or the quarantine owns it. The state is always the caller's.
type request struct {
	ctx        context.Context
	exchange   string
	routingKey string
	uuid       string
	suspect    *atomic.Bool // see Message.Suspect; may be nil
	publishing amqp091.Publishing
	// also in the header IDHeader; empty: the frame has no room for it, so the quarantine publishes the message
	id string

	// one of the states below; only the caller sets it, and the writer and the quarantine may read it at any time
	state  atomic.Int32
	failed error // why the message was never sent

	quit    chan struct{} // closed when the caller leaves; nil outside of the quarantine
	gone    chan struct{} // closed when no confirm can come any more; nil: the caller has not left before the write
	done    chan struct{} // one token per attempt: either session and confirm are set, or err
	session *session
	confirm *amqp091.DeferredConfirmation
	err     *failure.Error // the message was not written
}

// The states of a request. It holds a slot in all of them but unsent.
//
//	unsent ──► queued ──► written ──► settled ──► recycled
//	             │           └───────────┴──► queuedAgain ──► written
//	             └──► settled, when it could not be written; likewise from queuedAgain
//	queued, queuedAgain, written ──► abandoned
const (
	unsent      int32 = iota
	queued            // sent for the first time
	queuedAgain       // sent for another attempt: an earlier one may have been delivered
	written           // it is written, the outcome is not known
	settled           // the outcome of the last attempt is known
	abandoned         // the caller has left before it was settled: it does not have to be written
)

// recycle keeps a request for another message.
func (c *Connection) recycle(r *request) {
	*r = request{done: r.done}
	c.requests.Put(r)
}

// reportWritten ends an attempt: session and confirm are set.
func (r *request) reportWritten() { r.done <- struct{}{} }

// report ends an attempt: the message was not written. unsent: not even a part of it.
func (r *request) report(kind, cause error, unsent bool) {
	r.err = &failure.Error{Err: kind, Cause: cause, Unsent: unsent}
	r.done <- struct{}{}
}

func (r *request) failure(kind, cause error) error {
	return r.failureOf(&failure.Error{Err: kind, Cause: cause, Unsent: r.state.Load() == unsent})
}

// failureOf completes an error with where the message goes.
func (r *request) failureOf(err *failure.Error) error {
	err.Exchange, err.RoutingKey, err.MessageUUID = r.exchange, r.routingKey, r.uuid
	return err
}

// markSize is what the mark takes of a frame: a key's length byte, its value's type byte and four bytes of length.
const markSize = 1 + len(IDHeader) + 1 + 4 + 8

// mark gives the message an id. All its attempts share it: an attempt on the same session begins only after the return
// of the last one has been claimed, and another session has its own returns.
func (r *request) mark(id uint64) {
	r.id = strconv.FormatUint(id, 36)
	r.publishing.Headers[IDHeader] = r.id
}

func (r *request) unmark() {
	delete(r.publishing.Headers, IDHeader)
	r.id = ""
}

func newRequest() any { return &request{done: make(chan struct{}, 1)} }

func newTimer() any {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return timer
}
