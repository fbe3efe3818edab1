package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/retry"
)

// delivery is a message as it was received. It refers to payload and metadata from before the handler, which may
// replace them.
type delivery struct {
	msg       *message.Message
	uuid      string
	payload   message.Payload
	metadata  message.Metadata
	delayed   string // metadata of components/delay from before the handler
	ctx       context.Context
	bound     *msgctx.Subscription // nil: the subscriber is not one of this library
	own       *msgctx.Delivery
	deadlines *deadlines   // the deadlines of its handler
	token     string       // the token of the builder, which the metadata had
	recorded  bool         // the metadata hold a record, or marks of the marshaler
	record    retry.Record // on its topic; zero before readRecord, and where there is none
	began     time.Time    // when the handler was called; zero where it is not measured
	took      time.Duration

	observers *backend.Attached // nil: there are none
	observed  context.Context   // the context that the observers have made; nil: they have not changed it
	arrived   backoff.Tier      // on which the message waited first; 0: on none, or nothing observes
	lateness  time.Duration
	reported  bool // its outcome, to the observers

	calling  bool // the handler is running
	safe     bool // the message may be acked: its copy is confirmed, or a rule discards it
	finished bool // the middleware returns to the router, which settles the message

	call *outlivedCall // nil: its failure is not kept

	breaker *breaker // nil: the handler never pauses
	pass    pass
	key     string      // the key of the breaker; empty: there is none
	place   *gate.Place // under the limit of a gate; nil: none is needed
}

// called ends the handler's call.
func (d *delivery) called() {
	d.calling = false
	if !d.began.IsZero() {
		d.took = time.Since(d.began)
	}
}

// endCall gives the place of the call to another message, while the broker confirms what is published because of this
// one. It is called when the breaker has the outcome. A handler that holds messages gets no more that it may have to
// hold.
func (d *delivery) endCall() {
	if d.own == nil || d.own.Place == nil {
		return
	}
	if gate := d.gate(); gate == nil || gate.Held() == 0 {
		d.own.Place.EndCall()
	}
}

// pace waits before a nack, where the subscriber does not do that by itself: the message would come back at once, again
// and again.
func (d *delivery) pace() {
	if gate := d.gate(); gate == nil || !gate.Attached() {
		d.sleep(shutdownPause)
	}
}

// gate limits the handler; nil: nothing does.
func (d *delivery) gate() *gate.Gate {
	if d.bound == nil {
		return nil
	}
	return d.bound.Gate
}

// stopping is closed when the subscription ends.
func (d *delivery) stopping() <-chan struct{} {
	if d.bound == nil || d.bound.Stopping == nil {
		return d.ctx.Done()
	}
	return d.bound.Stopping
}

// sleep reports false, early, when the subscription ends or the message goes back to the backend. The end of a deadline
// that a middleware outside has set is neither.
func (d *delivery) sleep(wait time.Duration) bool { return d.await(unpublished.Lost{}, wait) }

// await is sleep that also returns early, and reports true, when the confirm of a copy cannot come any more.
func (d *delivery) await(confirm unpublished.Lost, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var taken, leaving, lost <-chan struct{}
	if d.own != nil {
		taken, leaving = d.own.Done(), d.own.Leaving
	}
	if d.own != nil && d.own.Lost != nil {
		lost = d.own.Lost.Done()
	}
	for stopping := d.stopping(); ; stopping = nil {
		select {
		case <-timer.C:
			return true
		case <-confirm.Channel:
			return true
		case <-confirm.Connection:
			return true
		case <-taken:
			return false
		case <-leaving:
			return false
		case <-lost:
			return false
		case <-stopping:
			if d.shuttingDown() {
				return false
			}
		}
	}
}

// takenBack reports whether the backend has ended the message's context while the subscription goes on, as NATS does
// after its AckWait: it delivers the message again, and an ack would not be sent.
func (d *delivery) takenBack() bool {
	return d.own != nil && d.own.Err() != nil && !d.shuttingDown()
}

// lost reports whether nothing can settle the message any more: its channel or connection is lost, and the broker
// delivers it again. A copy of it would be a second one.
func (d *delivery) lost() bool {
	return d.own != nil && d.own.Lost != nil && d.own.Lost.Err() != nil
}

// describe describes the delivery for the decision. s is zero before. While a subscription shuts down, a message whose
// context has not ended may still fail by itself, and counts: err is what its handler has returned.
func (t *TieredRetry) describe(in *delivery, s *situation, called bool, err error, now time.Time) {
	s.called, s.settled, s.origin = called, called && settled(in.msg), originOf(in.ctx)
	s.ended = in.lost() || in.takenBack() || in.shuttingDown() && (!called || in.ctx.Err() != nil || isCanceled(err))
	s.key = in.key
	s.record, s.skipped = in.record, in.own != nil && in.own.GivenUp
	if _, counted := in.metadata[recordkey.Failures]; !counted && t.traits.DelayArrivals {
		s.delayed, _ = delayIn(in.metadata)
	}
	if t.config.MaxAgeFrom != nil {
		s.sentAt = t.sentAt(in)
	}
}

// readRecord reads the record on the topic. It is not inlined: every call of a handler would keep its room on the
// stack.
//
//go:noinline
func (in *delivery) readRecord() { in.record = recordOn(originOf(in.ctx).topic, in.metadata) }

// recordOn returns the record of a message, which counts only on its own topic.
func recordOn(topic string, metadata message.Metadata) retry.Record {
	record, found := retry.ReadRecord(metadata)
	if !found || record.Topic != topic {
		return retry.Record{}
	}
	return record
}

// isCanceled reports whether an error is that of a context that was cancelled.
func isCanceled(err error) (canceled bool) {
	_ = panics.Call(func() { canceled = errors.Is(err, context.Canceled) }) // the methods of some errors panic
	return canceled
}

// sentAt is zero where MaxAgeFrom panics.
func (t *TieredRetry) sentAt(in *delivery) (at time.Time) {
	t.guard(in, nil, "MaxAgeFrom panicked, the age is that of the first failure",
		func() { at = t.config.MaxAgeFrom(in.msg) })
	return at
}

// begin reads where the message comes from, and calls Begin of the observers.
func (t *TieredRetry) begin(in *delivery) {
	from := originOf(in.ctx)
	e := retry.Event{
		Context: in.ctx, Topic: from.topic, Handler: from.handler, MessageUUID: in.uuid, Metadata: in.metadata,
		Record: in.record,
	}
	if due := e.Record.DueAt; !due.IsZero() && !e.Record.LastFailedAt.IsZero() {
		// else the due time is forged, and would outweigh all others in a sum
		if late := in.began.Sub(due); late <= t.policy.maxDelay {
			in.arrived, _, _ = t.policy.place(due.Sub(e.Record.LastFailedAt), nil)
			in.lateness = max(late, 0)
		}
	}
	e.Arrived, e.Lateness = in.arrived, in.lateness
	if in.observed = in.observers.Begin(&e); in.observed != nil {
		in.msg.SetContext(in.observed)
	}
}

// restore gives the message its own context back: a second call with it must not begin within the first one. The
// subscriber may read the context of a message that is settled.
func (in *delivery) restore() {
	if in.observed != nil && !settled(in.msg) {
		in.msg.SetContext(in.ctx)
	}
}

// seen is the message's context, as the observers have made it.
func (in *delivery) seen() context.Context {
	if in.observed != nil {
		return in.observed
	}
	return in.ctx
}
