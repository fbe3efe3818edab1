package retrytest

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

// copyPublished records the copy that the middleware publishes for a delivery. It is called before the message is
// acked.
func (l *ledger) copyPublished(d *delivery, tier backoff.Tier, msg *message.Message) {
	record, ok := retry.ReadRecord(msg.Metadata)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := d.progress
	p.copies++
	l.handlers[record.Handler] = p.queue
	failed, snoozed := record.Failures > d.Record.Failures, record.Snoozes > d.Record.Snoozes
	if failed {
		d.Failures = record.Failures
	}
	d.copied, d.uncalled = record, !failed && !snoozed
	switch {
	case record.DeadReason != "":
		d.Outcome, d.DeadReason, p.deadLetter = retry.DeadLettered, record.DeadReason, msg.Copy()
	case failed:
		d.Outcome = retry.Retried
	case snoozed:
		d.Outcome = retry.Snoozed
	default:
		d.Outcome = retry.Parked
	}
	if record.DeadReason == "" {
		d.Tier, d.Delay, p.due = tier, time.Until(record.DueAt), record.DueAt
	}
	if d.Err == nil && !d.uncalled {
		d.Err = recordedError(record.Reason)
	}
	l.notifyChanged()
}

// dueAfterItsTier makes the relay wait for a whole tier in place of the delay, as RabbitMQ does.
func dueAfterItsTier(c backend.Copy) {
	if record, ok := retry.ReadRecord(c.Message.Metadata); ok {
		record.DueAt = time.Now().Add(time.Duration(c.Tier))
		record.Write(c.Message.Metadata)
	}
}

// recordedError is an error of which only the text in the failure record is known, until the middleware has reported
// it.
type recordedError string

func (e recordedError) Error() string { return string(e) }

// recorder gives the ledger what the middleware reports.
type recorder struct {
	retry.NopObserver
	ledger *ledger
}

func (r recorder) Event(e retry.Event) { r.ledger.observe(e) }

// observe replaces what the ledger has concluded from the copy with what the middleware reports: it has the error
// itself. The outcome of a message that is nacked is known only then.
func (l *ledger) observe(e retry.Event) {
	d, _ := e.Context.Value(deliveryKey{}).(*delivery)
	if d == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	d.Rule, d.Spread = e.Rule, e.Spread
	switch e.Outcome {
	case retry.Held, retry.GivenBack, retry.Settled:
		return
	}
	d.Outcome = e.Outcome
	if e.Outcome == retry.Discarded {
		d.Failures = e.Record.Failures
	}
	if _, recorded := d.Err.(recordedError); d.Err == nil || recorded {
		d.Err = e.Err
	}
}
