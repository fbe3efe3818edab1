package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/suspect"
)

// errChannelClosed is the outcome of a message that was in flight when the broker closed the shared channel. It is not
// known which message caused the close.
var errChannelClosed = errors.New("the broker closed the channel while the message was in flight")

var errDeadline error = timeoutError("ConnectionConfig.ConfirmTimeout is over")

// A call is one call of Publish.
type call struct {
	p        *Publisher
	requests []*request
	timer    *time.Timer // one deadline for all messages of the call
	expired  bool        // the timer has fired
}

// run sends all messages, then waits for them, oldest first. When there is no free slot, it waits for the call's own oldest
// message first, and for slots of other calls only when it has none in flight. Otherwise calls with more messages than
// MaxInFlight could block each other.
func (c *call) run() error {
	var failures []error
	next := 0 // the oldest message that has not been settled
	settle := func() {
		r := c.requests[next]
		next++
		if err := c.settle(r); err != nil {
			failures = append(failures, err)
		}
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
	return joinFailures(failures)
}

// start sends the message, or sets r.failed. It returns false when there is no free slot and wait is false.
func (c *call) start(r *request, wait bool) bool {
	if err := r.ctx.Err(); err != nil {
		r.failed = c.p.failure(r, ErrNotConfirmed, err)
		return true
	}
	select {
	case <-c.p.link.slots:
	default:
		if !wait {
			return false
		}
		if err := c.await(c.p.link.slots, r.ctx); err != nil {
			r.failed = c.left(r, err)
			if s := c.p.link.state.Load().session; s != nil {
				s.giveUpIfStuck() // an alarm may have prevented it until now
			}
			return true
		}
	}
	c.send(r, c.lane(r), queued)
	return true
}

// lane returns the lane of the first attempt. A message because of which the broker has closed a channel before, in an
// earlier call, goes to the quarantine. So does a message without a mark: it is the only message of its channel there,
// so its return needs no mark.
func (c *call) lane(r *request) chan *request {
	if closed := suspect.Of(r.ctx); r.id != "" && (closed == nil || !closed.Load()) {
		return c.p.link.toWriter
	}
	r.quit = make(chan struct{})
	return c.p.link.toQuarantine
}

// send never blocks: a lane's channel has room for as many requests as there are slots.
func (c *call) send(r *request, lane chan<- *request, state int32) {
	r.state.Store(state)
	lane <- r
}

// settle waits for the outcome of a message that was started. It sends the message again where Publish does so, and returns
// the error of the last attempt.
func (c *call) settle(r *request) error {
	if r.failed != nil {
		return r.failed
	}
	lane, declared, redeclared := c.p.link.toWriter, false, false
	if r.quit != nil {
		lane = c.p.link.toQuarantine
	}
	for {
		err := c.outcome(r, lane == c.p.link.toQuarantine)
		switch {
		case err == nil:
			return nil
		case err == errChannelClosed:
			lane = c.p.link.toQuarantine
		case err == errGivenUp: // no message caused it: again in the same lane
		case noExchange(err) && c.p.config.DeclareExchange != nil:
			if declared {
				return err
			}
			declared = true
			if err := c.redeclare(r, err, c.p.exchanges, destination{exchange: r.exchange}); err != nil {
				return err
			}
		case errors.Is(err, ErrUnroutable) && c.p.config.Redeclare != nil && !redeclared:
			redeclared = true
			if err := c.redeclare(r, err, c.p.redeclares, destination{r.exchange, r.routingKey}); err != nil {
				return err
			}
		default:
			return err
		}
		if lane == c.p.link.toQuarantine {
			r.quit = make(chan struct{})
		}
		c.send(r, lane, queuedAgain)
	}
}

// outcome waits for the outcome of one attempt.
func (c *call) outcome(r *request, alone bool) error {
	if err := c.await(r.done, r.ctx); err != nil {
		return c.left(r, err)
	}
	if r.err != nil {
		r.err.unsent = r.err.unsent && r.state.Load() == queued // an earlier attempt may have been delivered
		r.state.Store(settled)
		return c.p.failureOf(r, r.err)
	}
	r.state.Store(written)
	s := r.session
	if r.id == "" {
		defer s.giveUp() // no other message of its channel has a confirm to come
	}
	if err := c.confirmed(r); err == errGivenUp {
		return err
	} else if err != nil {
		return c.left(r, err)
	}
	r.state.Store(settled)
	if returned, found := s.claim(r.id); found {
		return c.p.failure(r, ErrUnroutable, fmt.Errorf("returned: %d %s", returned.ReplyCode, returned.ReplyText))
	}
	if r.confirm.Acked() {
		return nil
	}
	if !s.channel.IsClosed() {
		s.nacked()
		return c.p.failure(r, ErrNacked, nil)
	}
	if err := c.await(s.closed, r.ctx); err != nil {
		return c.left(r, err)
	}
	if closed := suspect.Of(r.ctx); alone && closed != nil && s.reason != nil {
		closed.Store(true)
	}
	switch {
	case s.connection.Client.IsClosed():
		return c.p.failure(r, ErrNotConnected, s.connection.CloseReason())
	case !alone && s.reason == nil:
		return errGivenUp
	case !alone:
		return errChannelClosed
	case s.reason == nil:
		return c.p.failure(r, ErrNotConnected, wire.ErrLost)
	case s.reason.Code == amqp091.NotFound:
		return c.p.failure(r, ErrUnroutable, s.reason)
	default:
		return c.p.failure(r, ErrRefused, s.reason)
	}
}

// noExchange reports whether the broker closed the channel because the exchange does not exist.
func noExchange(err error) bool {
	var cause *amqp091.Error
	return errors.Is(err, ErrUnroutable) && errors.As(err, &cause) && cause.Code == amqp091.NotFound
}

// declareExchange waits until Config.DeclareExchange has been called on the connection in use.
func (c *call) declareExchange(r *request) error {
	for {
		state := c.p.link.state.Load()
		if state.connection == nil {
			return c.p.failure(r, ErrNotConnected, state.cause)
		}
		d := c.p.exchanges.once(destination{exchange: r.exchange}, state.connection)
		if d == nil {
			return nil
		}
		err := c.declared(d, r.ctx, c.p.exchanges.field)
		switch {
		case err == nil: // on this connection, or on the one before
		case state.connection.Blocked.Load():
			return c.p.failure(r, ErrBlocked, err)
		case state.connection.Client.IsClosed():
			return c.p.failure(r, ErrNotConnected, err)
		default:
			return c.p.failure(r, ErrNotDeclared, err)
		}
	}
}

// redeclare waits for a new declaration. It returns an error when the message should not be published again.
func (c *call) redeclare(r *request, unroutable error, all *declarations, to destination) error {
	err := c.declared(all.again(to), r.ctx, all.field)
	if err == nil {
		return nil
	}
	var why *PublishError
	errors.As(unroutable, &why)
	return c.p.failure(r, ErrUnroutable, &redeclareError{why.Cause, err})
}

// declared waits for a declaration, and returns its error or why the caller stops waiting.
func (c *call) declared(d *declaration, ctx context.Context, field string) error {
	limited, cancel := context.WithTimeout(ctx, c.p.config.DeclareTimeout)
	defer cancel()
	err := c.await(d.done, limited)
	switch {
	case err == nil:
		return d.err
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return timeoutError(fmt.Sprintf("%s did not return in time, within %s", field, c.p.config.DeclareTimeout))
	}
	return err
}

// await waits for a receive from ready. An error is the reason why the caller stops waiting.
func (c *call) await(ready <-chan struct{}, ctx context.Context) error {
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
	case <-ctx.Done():
		return ctx.Err()
	case <-c.timer.C:
		c.expired = true
		return errDeadline
	}
}

// confirmed waits for the confirm. It returns errGivenUp when the session was given up instead.
func (c *call) confirmed(r *request) error {
	select {
	case <-r.confirm.Done():
		return nil
	default:
	}
	if c.expired {
		return errDeadline
	}
	select {
	case <-r.confirm.Done():
		return nil
	case <-r.session.givenUp:
		return errGivenUp
	case <-r.ctx.Done():
		return r.ctx.Err()
	case <-c.timer.C:
		c.expired = true
		return errDeadline
	}
}

// left is the error of a message whose caller stops waiting.
func (c *call) left(r *request, why error) error {
	connection := c.p.link.state.Load().connection
	if connection != nil && connection.Blocked.Load() {
		return c.p.failure(r, ErrBlocked, why)
	}
	state := r.state.Load()
	if (state == unsent || state == queued) && !errors.Is(why, context.Canceled) {
		return c.p.failure(r, ErrStalled, why)
	}
	return c.p.failure(r, ErrNotConfirmed, why)
}

// release gives the slot back. A message whose outcome is not known keeps its slot until then: the broker can still return it,
// and there must be room for the return.
func (c *call) release(r *request) {
	p := c.p
	if r.quit != nil {
		close(r.quit)
	}
	state := r.state.Load()
	switch state {
	case unsent:
		r.recycle()
		return
	case settled:
		p.link.slots <- struct{}{}
		r.recycle()
		return
	}
	r.state.Store(abandoned)
	p.link.workers.Go(func() {
		if state != written {
			<-r.done
		}
		if r.err == nil {
			r.session.awaitAbandoned(r)
		}
		p.link.slots <- struct{}{}
	})
}
