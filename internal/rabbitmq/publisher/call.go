package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// errChannelClosed is the outcome of a message that was in flight when the broker closed the shared channel. It is not
// known which message caused the close.
var errChannelClosed = errors.New("the broker closed the channel while the message was in flight")

var errDeadline error = timeoutError("the time for confirms is over")

// A call is one call of Send.
type call struct {
	c        *Connection
	requests []*request
	timer    *time.Timer // one deadline for all messages of the call
	expired  bool        // the timer has fired
}

// run sends all messages, then waits for them, oldest first. When there is no free slot, it waits for the call's own
// oldest message first, and for slots of other calls only when it has none in flight. Otherwise calls with more
// messages than MaxInFlight could block each other.
func (c *call) run() (failures []error) {
	next := 0 // the oldest message that has not been settled
	settle := func() {
		r := c.requests[next]
		if err := c.settle(r); err != nil {
			if failures == nil {
				failures = make([]error, len(c.requests))
			}
			failures[next] = err
		}
		next++
		c.release(r)
	}
	for i, r := range c.requests {
		for !c.start(r, next == i) {
			settle()
		}
	}
	for next < len(c.requests) {
		settle()
	}
	return failures
}

// start sends the message, or sets r.failed. It returns false when there is no free slot and wait is false.
func (c *call) start(r *request, wait bool) bool {
	if err := r.ctx.Err(); err != nil {
		r.failed = r.failure(publish.ErrNotConfirmed, err)
		return true
	}
	select {
	case <-c.c.slots:
	default:
		if !wait {
			return false
		}
		if err := c.await(c.c.slots, nil, r.ctx); err != nil {
			r.failed = c.left(r, err)
			if s := c.c.current.Load().session; s != nil {
				s.giveUpIfStuck() // an alarm may have prevented it until now
			}
			return true
		}
	}
	c.send(r, c.first(r), queued)
	return true
}

// first returns where the first attempt goes. A message because of which the broker has closed a channel before, in an
// earlier call, goes to the quarantine. So does a message without a mark: it is the only message of its channel there,
// so its return needs no mark.
func (c *call) first(r *request) chan *request {
	if r.id != "" && (r.suspect == nil || !r.suspect.Load()) {
		return c.c.toWriter
	}
	r.quit = make(chan struct{})
	return c.c.toQuarantine
}

// send never blocks: the channel has room for as many requests as there are slots.
func (c *call) send(r *request, to chan<- *request, state int32) {
	r.state.Store(state)
	to <- r
}

// settle waits for the outcome of a message that was started. It sends the message again when the channel was closed
// while the message was in flight, and returns the error of the last attempt.
func (c *call) settle(r *request) error {
	if r.failed != nil {
		return r.failed
	}
	to := c.c.toWriter
	if r.quit != nil {
		to = c.c.toQuarantine
	}
	for {
		err := c.outcome(r, to == c.c.toQuarantine)
		switch err {
		case errChannelClosed:
			if err := limitsOf(r.session.connection).checkBody(r.publishing.Body); err != nil {
				return r.failure(publish.ErrRefused, err)
			}
			to = c.c.toQuarantine
		case errGivenUp: // no message caused it: again in the same way
		default:
			return err
		}
		if to == c.c.toQuarantine {
			r.quit = make(chan struct{})
		}
		c.send(r, to, queuedAgain)
	}
}

// outcome waits for the outcome of one attempt.
func (c *call) outcome(r *request, alone bool) error {
	if err := c.await(r.done, nil, r.ctx); err != nil {
		return c.left(r, err)
	}
	if r.err != nil {
		r.err.Unsent = r.err.Unsent && r.state.Load() == queued // an earlier attempt may have been delivered
		r.state.Store(settled)
		return r.failureOf(r.err)
	}
	r.state.Store(written)
	s := r.session
	if r.id == "" {
		defer s.giveUp() // no other message of its channel has a confirm to come
	}
	if err := c.await(r.confirm.Done(), s.givenUp, r.ctx); err == errGivenUp {
		return err
	} else if err != nil {
		return c.left(r, err)
	}
	r.state.Store(settled)
	if returned, found := s.claim(r.id); found {
		return r.failure(publish.ErrUnroutable, fmt.Errorf("returned: %d %s", returned.ReplyCode, returned.ReplyText))
	}
	if r.confirm.Acked() {
		return nil
	}
	if !s.channel.IsClosed() {
		s.nacked()
		return r.failure(publish.ErrNacked, nil)
	}
	if err := c.await(s.closed, nil, r.ctx); err != nil {
		return c.left(r, err)
	}
	if alone && r.suspect != nil && s.reason != nil {
		r.suspect.Store(true)
	}
	switch {
	case s.connection.Client.IsClosed():
		return r.failure(publish.ErrNotConnected, s.connection.CloseReason())
	case !alone && s.reason == nil:
		return errGivenUp
	case !alone:
		return errChannelClosed
	case s.reason == nil:
		return r.failure(publish.ErrNotConnected, wire.ErrLost)
	case s.reason.Code == amqp091.NotFound:
		return r.failure(publish.ErrUnroutable, s.reason)
	default:
		return r.failure(publish.ErrRefused, s.reason)
	}
}

// await waits for a receive from ready. An error is the reason why the caller stops waiting. It is errGivenUp when
// givenUp is closed.
func (c *call) await(ready, givenUp <-chan struct{}, ctx context.Context) error {
	select {
	case <-ready:
		return nil
	default:
	}
	if c.expired {
		return errDeadline
	}
	select {
	case <-ready:
		return nil
	case <-givenUp:
		return errGivenUp
	case <-ctx.Done():
		return ctx.Err()
	case <-c.timer.C:
		c.expired = true
		return errDeadline
	}
}

// left is the error of a message whose caller stops waiting.
func (c *call) left(r *request, why error) error {
	connection, state := c.c.link.State().Connection, r.state.Load()
	lost := unpublished.ConnectionLost
	switch {
	case state == written || state == settled:
		lost = unpublished.Lost{Channel: r.session.lost, Connection: r.session.connection.Closed}
	case connection != nil && state == unsent:
		lost = unpublished.Lost{Connection: connection.Closed}
	case connection != nil:
		r.gone = make(chan struct{})
		lost = unpublished.Lost{Channel: r.gone, Connection: connection.Closed}
	}
	as := publish.ErrNotConfirmed
	switch {
	case connection != nil && connection.Blocked.Load():
		as = publish.ErrBlocked
	case (state == unsent || state == queued) && !errors.Is(why, context.Canceled):
		why = fmt.Errorf("it was not written in time: %w", why)
	}
	return r.failure(as, &unpublished.AwaitedError{Err: why, Lost: lost})
}

// release gives the slot back. A message whose outcome is not known keeps its slot until then: the broker can still
// return it, and there must be room for the return.
func (c *call) release(r *request) {
	if r.quit != nil {
		close(r.quit)
	}
	state := r.state.Load()
	switch state {
	case unsent:
		c.c.recycle(r)
		return
	case settled:
		c.c.slots <- struct{}{}
		c.c.recycle(r)
		return
	}
	r.state.Store(abandoned)
	c.c.workers.Go(func() {
		if state != written {
			<-r.done
		}
		if r.err == nil {
			r.session.awaitAbandoned(r)
		}
		if r.gone != nil && (r.err != nil || r.session.hasLost(r)) {
			close(r.gone)
		}
		c.c.slots <- struct{}{}
	})
}

// timeoutError is the end of a wait of this package.
type timeoutError string

func (e timeoutError) Error() string { return string(e) }

// Timeout marks the error as net.Error does.
func (e timeoutError) Timeout() bool { return true }
