package middleware

import (
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
)

// Outcome is what becomes of one delivery of a message.
type Outcome string

// The outcomes of a delivery.
const (
	// Processed: the handler returned nil. Its produced messages are published without the failure record.
	Processed Outcome = "processed"
	// Retried: the handler failed and retries are left. A copy waits on a tier.
	Retried Outcome = "retried"
	// Parked: the handler was not called, because a part of a requested delay remains. A copy waits on a tier, uncounted.
	Parked Outcome = "parked"
	// DeadLettered: the message is given up. A copy is a dead letter, with a DeadReason.
	DeadLettered Outcome = "dead-lettered"
	// GivenBack: the message is nacked and counts no failure, because the subscription ends or the copy cannot be published.
	GivenBack Outcome = "given back"
	// Settled: the handler failed after it had acked or nacked the message itself. No copy is published.
	Settled Outcome = "settled"
)

// Outcomes returns all outcomes, in the order of the table in docs/outcomes.md.
func Outcomes() []Outcome {
	return []Outcome{Processed, Retried, Parked, DeadLettered, GivenBack, Settled}
}

// DeadReason is why a message was dead-lettered: the value of DeadReasonKey. A dead letter that the broker or package relay
// made has a reason of theirs.
type DeadReason string

// The dead reasons of the middleware.
const (
	DeadReasonExhausted DeadReason = "exhausted" // its retries are used up
	DeadReasonPermanent DeadReason = "permanent" // its handler returned a backoff.Permanent error
	DeadReasonUnmarshal DeadReason = "unmarshal" // the app's marshaler cannot read it, so no handler was called
	DeadReasonTooLarge  DeadReason = "too_large" // its headers are too large for a tier
)

// situation is what is known of a delivery when its outcome is decided.
type situation struct {
	record  Record // as it came; zero where there is none, or where it does not count on this topic
	origin  origin
	called  bool    // the handler has been called
	settled bool    // the handler has acked or nacked the message itself
	ended   bool    // the subscription has ended: a shutdown
	refused refusal // what the publisher did with the copy of an earlier decision
}

// refusal is why a copy is not published.
type refusal int

const (
	notRefused  refusal = iota // no copy has been tried yet
	tooLarge                   // the copy does not fit on a tier
	unpublished                // the copy could not be published until MaxHold or shutdown
)

// decision is the outcome of a delivery, and the copy that it needs.
type decision struct {
	outcome Outcome // empty: the handler is to be called
	record  Record  // of the copy
	tier    backoff.Tier
	delay   time.Duration // from now until the handler is to be called again
}

// policy is what decisions depend on besides the delivery.
type policy struct {
	schedule  backoff.Schedule
	tiers     []backoff.Tier
	tolerance time.Duration // what may remain of a delay when the handler is called
}

// decide is a pure function. f.err is nil while the handler has not failed. It is called again, with the same failure and time,
// after a copy was refused. It gets pointers, as what it calls, because the goroutine of a failed message needs a small stack: a
// stack that has to grow twice costs more than the decision.
func (p *policy) decide(s *situation, f *failure, now time.Time) (d decision) {
	failed := f.err != nil
	switch {
	case s.settled && failed:
		d.outcome = Settled
		return d
	case s.ended && (failed || !s.called), s.refused == unpublished:
		d.outcome = GivenBack
		return d
	case failed:
		p.decideFailure(&d, s, f, now)
		return d
	case s.called:
		d.outcome = Processed
		return d
	}
	remains := s.record.DueAt.Sub(now)
	switch {
	case s.record.DueAt.IsZero() || remains <= p.tolerance:
		return d
	case s.refused == tooLarge:
		d.record = s.record
		d.deadLetter(DeadReasonTooLarge, &s.origin)
		return d
	}
	d.outcome, d.record, d.tier, d.delay = Parked, s.record, p.tierFor(remains), remains
	return d
}

func (p *policy) decideFailure(d *decision, s *situation, f *failure, now time.Time) {
	d.record = s.record
	record := &d.record
	if record.FirstFailedAt.IsZero() {
		record.FirstFailedAt = now
	}
	record.Failures++
	record.LastFailedAt = now
	record.Reason, record.ErrorType = f.reason, f.errorType
	record.Topic, record.Handler = s.origin.topic, s.origin.handler
	record.DeadReason, record.DueAt = "", time.Time{}

	_, unreadable := f.err.(errUnmarshal)
	permanent, requested := requestOf(f.err)
	delay, left := p.schedule.Delay(record.Failures)
	switch {
	case unreadable:
		d.deadLetter(DeadReasonUnmarshal, &s.origin)
		return
	case permanent:
		d.deadLetter(DeadReasonPermanent, &s.origin)
		return
	case !left:
		d.deadLetter(DeadReasonExhausted, &s.origin)
		return
	case s.refused == tooLarge:
		d.deadLetter(DeadReasonTooLarge, &s.origin)
		return
	case requested > 0:
		delay = min(requested, backoff.MaxDelay)
	}
	record.DueAt = now.Add(delay)
	d.outcome, d.tier, d.delay = Retried, p.tierFor(delay), delay
}

// deadLetter makes a dead letter of the record.
func (d *decision) deadLetter(why DeadReason, from *origin) {
	d.outcome = DeadLettered
	d.record.DeadReason, d.record.DueAt, d.record.Subscriber = why, time.Time{}, from.subscriber
}

// requestOf calls the error's own methods. They may panic: such an error requests nothing.
func requestOf(err error) (permanent bool, delay time.Duration) {
	defer func() {
		if recover() != nil {
			permanent, delay = false, 0
		}
	}()
	delay, _ = backoff.RetryAfterDelay(err)
	return backoff.IsPermanent(err), delay
}

// tierFor returns the shortest tier that covers the wait, or the longest: the rest is waited for in another round.
func (p *policy) tierFor(wait time.Duration) backoff.Tier {
	for _, tier := range p.tiers {
		if time.Duration(tier) >= wait {
			return tier
		}
	}
	return p.tiers[len(p.tiers)-1]
}
