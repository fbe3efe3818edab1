package publisher

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A request is one message on its way. Its caller owns it, save between send and the token in sent, when a lane (the
// writer or the quarantine) does.
type request struct {
	ctx        context.Context
	routingKey string
	uuid       string
	publishing amqp091.Publishing

	id        string        // also in the header IDHeader; empty: there is no room for it, and the message goes alone
	abandoned atomic.Bool   // the caller has left: a lane need not send it any more
	quit      chan struct{} // closed when the caller leaves; only while in quarantine
	sent      chan struct{} // one token per attempt: the lane is done, and what follows is set
	session   *session
	confirm   *amqp091.DeferredConfirmation
	err       *PublishError // instead: not sent

	failed  error // the message came to its end before it was sent at all
	pending bool  // sent to a lane, outcome not yet known
	told    bool  // the token of this attempt has been taken
	again   bool  // not the first attempt
	slot    bool
}

var requests = sync.Pool{New: func() any { return &request{sent: make(chan struct{}, 1)} }}

func (r *request) recycle() {
	sent := r.sent
	*r = request{sent: sent}
	requests.Put(r)
}

// handed tells the caller that its message is on its way.
func (r *request) handed() { r.sent <- struct{}{} }

// fail tells the caller that its message did not leave.
func (r *request) fail(kind, cause error) {
	r.err = &PublishError{Err: kind, Cause: cause}
	r.sent <- struct{}{}
}

// markSize is what the mark takes of a frame: a key's length byte, its value's type byte and four bytes of length.
const markSize = 1 + len(IDHeader) + 1 + 4 + 8

func (r *request) unmark() {
	delete(r.publishing.Headers, IDHeader)
	r.id = ""
}

// mark gives the message an id, which all its attempts share: one on the same session begins only when the return of the last
// has been claimed, and another session has returns of its own.
func (r *request) mark(id uint64) {
	r.id = strconv.FormatUint(id, 36)
	r.publishing.Headers[IDHeader] = r.id
}

var timers = sync.Pool{New: func() any {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return timer
}}
