package middleware

import (
	"iter"
	"math"
	"time"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

// Simulate returns the outcomes of one message, each with the time of its delivery since the first one, without
// publishing, waiting or calling observers. They are decided as those of a delivery. Package retrytest prints them
// (Simulate).
//
// Destination and Context of the events are not set. Duration is how long the handler takes. Every publish succeeds,
// and a message that is given back comes again at once. A breaker is not simulated. The sequence ends with the message:
// it has no end where a rule snoozes the message or gives it back at every call, and there is no MaxAge.
//
// With Jitter every delay is the shortest one, and Spread is how much longer it can be. So MaxAge can dead-letter a
// message earlier than the sequence does.
//
// The functions of Rules are called. They get records with times by which the present time is that of the failure.
func (t *TieredRetry) Simulate(m backend.SimulatedMessage) iter.Seq2[time.Duration, retry.Event] {
	return func(yield func(time.Duration, retry.Event) bool) {
		start := time.Now().Truncate(time.Millisecond)
		var record retry.Record
		at, call := time.Duration(0), 0
		for {
			s := situation{record: record, origin: origin{topic: m.Topic, handler: m.Handler}}
			if m.Age > 0 {
				s.sentAt = start.Add(-m.Age)
			}
			var f failure
			now := start.Add(at)
			d := t.policy.decide(&s, &f, now)
			took := time.Duration(0)
			if d.outcome == "" {
				call++
				took = m.Takes
				now = now.Add(took)
				s.called = true
				if err := m.Handle(call); err != nil {
					f = t.simulatedFailure(&s, err, now.Sub(start))
				}
				d = t.policy.decide(&s, &f, now)
			}
			if !yield(at, t.simulatedEvent(&s, &d, &f, took, now)) || d.final() {
				return
			}
			record = d.record
			at = sum(at, took, t.policy.comesBackAfter(&d))
		}
	}
}

// simulatedFailure is the failure of a call, and the rule that matches it. elapsed is the time since the start.
func (t *TieredRetry) simulatedFailure(s *situation, err error, elapsed time.Duration) failure {
	record := s.record
	for _, at := range []*time.Time{&record.FirstArrivedAt, &record.FirstFailedAt, &record.LastFailedAt,
		&record.DueAt} {
		if !at.IsZero() {
			*at = at.Add(-elapsed)
		}
	}
	f := t.failureOf(err)
	f.action, f.rule = t.actionFor(nil, &record, err)
	return f
}

func (t *TieredRetry) simulatedEvent(
	s *situation, d *decision, f *failure, took time.Duration, now time.Time,
) retry.Event {
	event := retry.Event{
		Outcome: d.outcome, Topic: s.origin.topic, Handler: s.origin.handler,
		Record: d.record, Duration: took, Delay: d.delay, Spread: d.spread, Tier: d.tier, Rule: f.rule, Err: f.err,
	}
	if !d.record.FirstFailedAt.IsZero() {
		event.Age = now.Sub(d.record.FirstFailedAt)
	}
	return event
}

// final reports whether the message does not come back.
func (d *decision) final() bool {
	return !d.outcome.Waits() && d.outcome != retry.GivenBack
}

// comesBackAfter is how long after its decision a message is delivered again.
func (p *policy) comesBackAfter(d *decision) time.Duration {
	switch {
	case d.outcome == retry.GivenBack:
		return shutdownPause
	case p.tiersWait:
		return time.Duration(d.tier)
	default:
		return d.delay
	}
}

// sum is at most the longest time.Duration.
func sum(all ...time.Duration) (total time.Duration) {
	for _, d := range all {
		if total > math.MaxInt64-d {
			return math.MaxInt64
		}
		total += d
	}
	return total
}
