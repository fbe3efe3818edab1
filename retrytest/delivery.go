package retrytest

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

// maxNacks is how often a message may be nacked. Send waits for no more: a nacked message comes back without a delay,
// so the patience would never end.
const maxNacks = 100

// delivery is one delivery of a message to a consumer group.
type delivery struct {
	Attempt
	progress         *progress
	delivered        time.Time
	copied           retry.Record // the record of its copy
	called, returned bool         // the handler
	settled, acked   bool         // the message
	byHandler        bool         // the message was settled before its handler returned
	abandoned        bool         // the handler did not return, so the message may stay unsettled
}

type deliveryKey struct{}

// deliveryOf returns nil for a message that is not in the ledger.
func deliveryOf(msg *message.Message) *delivery {
	d, _ := msg.Context().Value(deliveryKey{}).(*delivery)
	return d
}

// beginDelivery records a delivery. It returns nil for a message that was nacked too often.
func (l *ledger) beginDelivery(q *queue, msg *message.Message) *delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.latest[progressKey{q, msg.UUID}]
	if nacks := p.nacks(); nacks >= maxNacks {
		p.problem = fmt.Sprintf("message %q was given back %d times without a delay: the handler's errors must reach "+
			"App.Middleware, and no middleware outside of it may fail", msg.UUID, nacks)
		l.notifyChanged()
		return nil
	}
	now := time.Now()
	d := &delivery{progress: p, delivered: now}
	if record, ok := retry.ReadRecord(msg.Metadata); ok && record.Topic == q.topic {
		d.Record, d.came = record, record
	}
	if len(p.deliveries) == 0 {
		p.first = now
	}
	d.At = now.Sub(p.first)
	p.deliveries, p.latest, p.due = append(p.deliveries, d), now, time.Time{}
	p.queue.latest = now
	l.open[d] = true
	l.notifyChanged()
	return d
}

// handlerCalled records that the handler, or a middleware of it, was called.
func (l *ledger) handlerCalled(d *delivery, handler string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.called, d.Handler = true, handler
	l.handlers[handler] = d.progress.queue
}

// handlerReturned records the end of the handler. The first error of a delivery stays. Abandoned: the handler panicked
// or ended its goroutine, so the message may stay unsettled. Settled: the handler has acked or nacked the message
// itself.
func (l *ledger) handlerReturned(d *delivery, err error, abandoned, settled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.returned, d.abandoned, d.byHandler = true, abandoned, settled
	if d.Outcome == "" {
		d.Duration = time.Since(d.delivered)
	}
	if d.Err == nil {
		d.Err = err
	}
	l.setOutcome(d)
	l.notifyChanged()
}

// messageSettled records the ack or nack of the message.
func (l *ledger) messageSettled(d *delivery, acked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.settled, d.acked = true, acked
	l.setOutcome(d)
	l.notifyChanged()
}

// setOutcome sets the outcome of a delivery that is over: the message is settled, and the handler has returned. The
// handler may return later, if it settles the message itself. It is called with the lock held.
func (l *ledger) setOutcome(d *delivery) {
	if !d.settled || d.runs() {
		return
	}
	delete(l.open, d)
	d.progress.latest = time.Now()
	d.progress.queue.latest = d.progress.latest
	if !d.acked {
		d.Outcome, d.nacked = d.nackedOutcome(), true
		return
	}
	if d.Outcome.Waits() {
		return
	}
	if d.Outcome == "" {
		d.Outcome = d.ackedOutcome()
	}
	d.progress.unfinished--
}

// isOpen reports whether the handler has not returned, or the ack or nack of the message is not known yet.
func (d *delivery) isOpen() bool { return d.runs() || d.returned && !d.settled && !d.abandoned }

// ackedOutcome returns the outcome of a message that was acked without a copy, where the middleware has not reported
// it.
func (d *delivery) ackedOutcome() retry.Outcome {
	switch {
	case d.Err != nil && d.byHandler:
		return retry.Settled
	case d.Err != nil:
		return retry.Discarded
	case d.came.Failures > 0 || d.came.Snoozes > 0:
		return retry.Recovered
	default:
		return retry.Processed
	}
}

// runs reports whether the handler runs.
func (d *delivery) runs() bool { return d.called && !d.returned }

// nackedOutcome returns the outcome of a message that was nacked: settled as in the middleware, if its handler nacked
// it and then failed.
func (d *delivery) nackedOutcome() retry.Outcome {
	if d.byHandler && d.Err != nil {
		return retry.Settled
	}
	return retry.GivenBack
}

// waited returns the time from the failure of this delivery to its retry, which is one of the later deliveries, after
// those that were parked.
func (d *delivery) waited(later []*delivery) time.Duration {
	if !d.again() {
		return 0
	}
	for _, next := range later {
		if next.Outcome != retry.Parked && next.came.Failures == d.copied.Failures &&
			next.came.Snoozes == d.copied.Snoozes {
			return next.delivered.Sub(d.copied.LastFailedAt)
		}
	}
	return 0
}

// copyPublished records the copy that the middleware publishes for a delivery. It is called before the message is
// acked.
func (l *ledger) copyPublished(d *delivery, c backend.Copy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.copied, _ = retry.ReadRecord(c.Message.Metadata)
	d.progress.copies++
	switch {
	case c.Blocked:
	case c.Tier == 0:
		d.progress.deadLetter = c.Message.Copy()
	default:
		d.progress.due = d.copied.DueAt
	}
	l.notifyChanged()
}

// recorder gives the ledger what the middleware reports.
type recorder struct {
	ledger *ledger
}

// Event implements retry.Observer. It is called before the message is settled, unless its handler has settled it.
func (r recorder) Event(e retry.Event) {
	d, _ := e.Context.Value(deliveryKey{}).(*delivery)
	if d == nil || e.Outcome == retry.Held {
		return
	}
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	d.report(e)
	if d.nacked {
		d.Outcome = d.nackedOutcome()
	}
}

// report takes over an event of the delivery.
func (a *Attempt) report(e retry.Event) {
	e.Handler, e.Context, e.Metadata = a.Handler, nil, nil
	a.Event = e
	a.uncalled = e.Outcome == retry.Parked || e.Outcome.GivenUp() && e.Err == nil
}
