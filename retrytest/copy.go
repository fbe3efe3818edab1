package retrytest

import (
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/middleware"
)

// copyPublished records the copy that the middleware publishes for a delivery. It is called before the message is acked.
func (l *ledger) copyPublished(d *delivery, topic string, msg *message.Message) {
	record, ok := middleware.ReadRecord(msg.Metadata)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := d.progress
	p.copies++
	l.handlers[record.Handler] = p.queue
	if record.Failures > d.failuresBefore {
		d.Failures, d.failed = record.Failures, record.LastFailedAt
	}
	switch {
	case record.DeadReason != "":
		d.Outcome, d.DeadReason, p.deadLetter = middleware.DeadLettered, record.DeadReason, msg.Copy()
	case record.Failures == d.failuresBefore:
		d.Outcome, d.Tier, d.Delay, p.due = middleware.Parked, l.tiers[topic], time.Until(record.DueAt), record.DueAt
	default:
		d.Outcome, d.Tier, d.Delay, p.due = middleware.Retried, l.tiers[topic], record.DueAt.Sub(record.LastFailedAt), record.DueAt
	}
	if d.Err == nil && d.Outcome != middleware.Parked {
		d.Err = recordedError(record.Reason)
	}
	l.notifyChanged()
}

// recordedError is an error of which only the text in the failure record is known: the app has made the middleware itself, so
// the ledger has no hook in it.
type recordedError string

func (e recordedError) Error() string { return string(e) }

// addHooks adds the ledger to the middleware's Observe, before the app's own. It gets the error itself.
func (l *ledger) addHooks(config *middleware.TieredRetryConfig) {
	observe := config.Observe
	config.Observe = func(e middleware.Event) {
		if e.Outcome == middleware.Retried || e.Outcome == middleware.DeadLettered {
			l.setError(e.Handler, e.MessageUUID, e.Record.Failures, e.Err)
		}
		if observe != nil {
			observe(e)
		}
	}
}

// setError replaces the recorded text of a failure with the error itself.
func (l *ledger) setError(handler, uuid string, failures int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.latest[progressKey{l.handlers[handler], uuid}]
	if p == nil {
		return
	}
	for _, d := range slices.Backward(p.deliveries) {
		if _, recorded := d.Err.(recordedError); d.Failures == failures && recorded {
			d.Err = err
			return
		}
	}
}
