package middleware

import (
	"cmp"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/retry"
)

// situation is what is known of a delivery when its outcome is decided.
type situation struct {
	record  retry.Record // as it came; zero where there is none, or where it does not count on this topic
	origin  origin
	called  bool          // the handler has been called
	repeat  bool          // in place of the handler, what it had produced before was returned
	settled bool          // the handler has acked or nacked the message itself
	ended   bool          // the subscription has ended, or the backend has taken the message back
	paused  bool          // the handler was not called, because it is paused
	key     string        // the key of the breaker; empty: there is none
	keyWait time.Duration // how long the key may not pass; 0: it does
	probe   bool          // the handler was called to see whether messages still fail
	delayed time.Duration // requested in the metadata of a message that has no record
	sentAt  time.Time     // the time that MaxAgeFrom returns; zero: not known
	chance  float64       // a random number from 0 up to, but not including, 1: which delay Jitter chooses
	// the copy of an earlier decision could not be published until MaxHold or shutdown, or the publisher is closed
	unpublished bool
	refused     unpublished.Kind // why the copy of an earlier decision is refused for good; Temporary: it is not
	last        string           // why the whole dead letter is refused for good; empty: it is not
	avoid       []backoff.Tier
	skipped     bool // it was Blocked, and an operator skips it
}

// decision is the outcome of a delivery, and the copy that it needs.
type decision struct {
	outcome retry.Outcome // empty: the handler is to be called
	record  retry.Record  // the record of the copy
	tier    backoff.Tier
	delay   time.Duration // from now until the handler is to be called again
	spread  time.Duration // how much longer Jitter can make the shortest delay
	cut     time.Duration // the requested delay, where it is longer than MaxDelay
}

// inLastForm reports whether the copy is a dead letter whose whole form is refused for good.
func (d *decision) inLastForm() bool {
	return d.outcome == retry.DeadLettered && d.record.LeftOff != ""
}

// policy is what decisions depend on besides the delivery.
type policy struct {
	schedule  backoff.Schedule
	tiers     []backoff.Tier // ascending: of the schedule, of the rules, and extra ones
	lanes     []backoff.Tier // ascending: those that only Jitter uses
	jitter    float64        // Policy.Jitter
	tiersWait bool           // Traits.TiersWait
	maxAge    time.Duration  // 0: none
	maxDelay  time.Duration  // the longest delay that can be requested
	blocks    bool           // Traits.Blocks
}

// decide is a pure function. f.err is nil while the handler has not failed. It is called again, with the same failure
// and time, after a copy was refused. It gets pointers, as what it calls, because the goroutine of a failed message
// needs a small stack: a stack that has to grow twice costs more than the decision.
func (p *policy) decide(s *situation, f *failure, now time.Time) (d decision) {
	failed := f.err != nil
	switch {
	case s.settled && failed:
		d.outcome, d.record = retry.Settled, s.record
	case s.ended && (failed || !s.called), s.unpublished, s.paused:
		d.outcome, d.record = retry.GivenBack, s.record
	case failed:
		p.decideFailure(&d, s, f, now)
	case s.repeat:
		d.outcome, d.record = retry.Duplicate, s.record
	case s.called && (s.record.Failures > 0 || s.record.Snoozes > 0):
		d.outcome, d.record = retry.Recovered, s.record
	case s.called:
		d.outcome = retry.Processed
	default:
		p.decideArrival(&d, s, now)
	}
	d.record.LeftOff = "" // a stranger may have written it
	if d.outcome == retry.DeadLettered && p.blocks && !s.skipped {
		d.outcome = retry.Blocked
	}
	if d.outcome == retry.DeadLettered {
		d.record.LeftOff = s.last
	}
	return d
}

// decideArrival decides whether the handler is called.
func (p *policy) decideArrival(d *decision, s *situation, now time.Time) {
	wait := max(s.record.Remaining, s.delayed)
	d.record = s.record
	switch expired := p.tooOld(s, &d.record, now); {
	case s.skipped:
		d.deadLetter(cmp.Or(d.record.DeadReason, retry.DeadReasonExhausted), &s.origin)
	case expired:
		d.deadLetter(retry.DeadReasonExpired, &s.origin)
	case wait <= 0 && s.keyWait <= 0:
		*d = decision{}
	default:
		if d.record.Topic == "" {
			d.record.Topic, d.record.Handler = s.origin.topic, s.origin.handler
		}
		if first := d.record.FirstFailedAt; first.IsZero() || first.After(now) {
			notAfter(&d.record.FirstArrivedAt, now)
		}
		if s.keyWait > 0 {
			p.park(d, s, now)
			return
		}
		p.wait(d, s, retry.Parked, p.requested(d, wait, 0), now)
	}
}

// park makes a copy that waits on one tier, and then asks again: the longest one that is not above the wait, where the
// tiers do the waiting.
func (p *policy) park(d *decision, s *situation, now time.Time) {
	d.record.Key = s.key
	wait := min(s.keyWait, p.maxDelay).Truncate(time.Millisecond)
	tier, _, found := p.place(wait, s.avoid)
	if !found {
		tier = 0
	}
	if p.tiersWait {
		wait = time.Duration(tier)
	}
	p.waitOn(d, s, retry.Parked, tier, 0, wait, now)
}

// decideFailure decides by the first rule that matches, then by what the error requests, then by the schedule.
func (p *policy) decideFailure(d *decision, s *situation, f *failure, now time.Time) {
	d.record = s.record
	record := &d.record
	notAfter(&record.FirstFailedAt, now)
	record.LastFailedAt = now
	record.Reason, record.ErrorType = f.reason, f.errorType
	record.Topic, record.Handler, record.Key = s.origin.topic, s.origin.handler, s.key
	record.DeadReason, record.DueAt, record.Remaining = "", time.Time{}, 0

	switch f.action.Outcome {
	case retry.GivenBack:
		d.outcome, d.record = retry.GivenBack, s.record
		return
	case retry.Snoozed:
		record.Snoozes++
		p.wait(d, s, retry.Snoozed, p.requested(d, f.requested, f.action.Delay), now)
		return
	}
	if s.probe && f.retried() {
		record.Snoozes++
		p.wait(d, s, retry.Snoozed, p.requested(d, max(f.requested, f.action.Delay), time.Duration(p.tiers[0])), now)
		return
	}
	record.Failures++
	schedule := p.schedule
	if f.action.Schedule != nil {
		schedule = f.action.Schedule
	}
	delay, left := delayAfter(schedule, record.Failures)
	switch {
	case f.unreadable:
		d.deadLetter(retry.DeadReasonUnmarshal, &s.origin)
	case f.action.Outcome == retry.Discarded:
		d.outcome = retry.Discarded
	case f.action.Outcome == retry.DeadLettered:
		d.deadLetter(f.action.DeadReason, &s.origin)
	case f.action.Outcome == "" && f.permanent:
		d.deadLetter(retry.DeadReasonPermanent, &s.origin)
	case !left:
		d.deadLetter(retry.DeadReasonExhausted, &s.origin)
	case f.action.Outcome == retry.Retried && f.action.Schedule == nil:
		p.wait(d, s, retry.Retried, f.action.Delay, now)
	case f.requested > 0:
		p.wait(d, s, retry.Retried, p.requested(d, f.requested, delay), now)
	default:
		p.waitSpread(d, s, delay, now)
	}
}

// delayAfter returns the delay after so many failures, counted from 1, and false when no retry is left.
func delayAfter(schedule backoff.Schedule, failures int) (time.Duration, bool) {
	if failures < 1 || failures > len(schedule) {
		return 0, false
	}
	return schedule[failures-1], true
}

// requested returns the requested delay, cut to MaxDelay, or the default where there is none.
func (p *policy) requested(d *decision, delay, otherwise time.Duration) time.Duration {
	if delay <= 0 {
		return otherwise
	}
	if delay > p.maxDelay {
		d.cut, delay = delay, p.maxDelay
	}
	return delay
}

// notAfter sets a time that is not known, or that a wrong clock or a stranger has written.
func notAfter(at *time.Time, now time.Time) {
	if at.IsZero() || at.After(now) {
		*at = now
	}
}

// wait makes a copy that waits, or a dead letter where it cannot.
func (p *policy) wait(d *decision, s *situation, outcome retry.Outcome, wait time.Duration, now time.Time) {
	wait = (wait + time.Millisecond - 1).Truncate(time.Millisecond) // what remains is written in whole milliseconds
	tier, rest, found := p.place(wait, s.avoid)
	delay := p.total(wait, tier)
	if delay > wait { // the same delay without a part of the shortest tier may take fewer rounds
		if other, left, _ := p.place(delay, s.avoid); p.total(delay, other) == delay {
			tier, rest = other, left
		}
	}
	if !found {
		tier = 0
	}
	p.waitOn(d, s, outcome, tier, rest, delay, now)
}

// waitSpread makes a copy that waits for a delay of a schedule, with Jitter.
func (p *policy) waitSpread(d *decision, s *situation, wait time.Duration, now time.Time) {
	if p.jitter <= 0 {
		p.wait(d, s, retry.Retried, wait, now)
		return
	}
	lanes := Lanes(wait, p.jitter)
	lane := lane(lanes, s)
	switch {
	case p.tiersWait:
		d.spread = lanes[len(lanes)-1] - wait
		if lane > 0 {
			wait = time.Duration(lane)
		}
	default:
		d.spread = time.Duration(float64(wait) * p.jitter)
		wait += time.Duration(float64(d.spread) * s.chance)
	}
	if lane == 0 {
		p.wait(d, s, retry.Retried, wait, now)
		return
	}
	p.waitOn(d, s, retry.Retried, lane, 0, wait.Truncate(time.Millisecond), now)
}

// lane returns the lane that chance chooses. One that is to be avoided is replaced by the next longer one, else by a
// shorter one; 0: all are to be avoided.
func lane(lanes []time.Duration, s *situation) backoff.Tier {
	chosen := min(int(s.chance*float64(len(lanes))), len(lanes)-1)
	usable := func(lane time.Duration) bool { return !slices.Contains(s.avoid, backoff.Tier(lane)) }
	for _, lane := range lanes[chosen:] {
		if usable(lane) {
			return backoff.Tier(lane)
		}
	}
	for _, lane := range slices.Backward(lanes[:chosen]) {
		if usable(lane) {
			return backoff.Tier(lane)
		}
	}
	return 0
}

// waitOn makes a copy that waits on a tier, or a dead letter where it cannot. The tier is 0 where every tier is to be
// avoided.
func (p *policy) waitOn(
	d *decision, s *situation, outcome retry.Outcome, tier backoff.Tier, rest, delay time.Duration, now time.Time,
) {
	switch {
	case s.refused == unpublished.TooLarge:
		d.deadLetter(retry.DeadReasonTooLarge, &s.origin)
	case s.refused == unpublished.Refused:
		d.deadLetter(retry.DeadReasonRefused, &s.origin)
	case tier == 0:
		d.deadLetter(retry.DeadReasonNoTier, &s.origin)
	case p.tooOld(s, &d.record, now.Add(delay)):
		d.deadLetter(retry.DeadReasonExpired, &s.origin)
	default:
		d.outcome, d.tier, d.delay = outcome, tier, delay
		d.record.Remaining, d.record.DueAt = rest, now.Add(delay)
	}
}

// tooOld reports whether a message is older than MaxAge at that time.
func (p *policy) tooOld(s *situation, record *retry.Record, at time.Time) bool {
	if p.maxAge <= 0 {
		return false
	}
	old := func(since time.Time) bool { return !since.IsZero() && at.Sub(since) > p.maxAge }
	return old(record.FirstFailedAt) || old(record.FirstArrivedAt) || old(s.sentAt)
}

// place returns the tier for a wait, and what remains of the wait after it. Where the tiers do the waiting, it is the
// longest that is not above the wait, else the shortest: so a wait is never cut, and is at most one shortest tier too
// long. Otherwise it is the shortest that is not below the wait, else the longest; so it is where a tier below a second
// would take too many rounds. A tier that is to be avoided is replaced by the next longer one, else by a shorter one,
// and so is a lane. It reports false where none is left.
func (p *policy) place(wait time.Duration, avoid []backoff.Tier) (tier backoff.Tier, rest time.Duration, found bool) {
	best := 0
	for i, t := range p.tiers {
		if time.Duration(t) <= wait {
			best = i
		} else if time.Duration(p.tiers[best]) < wait && (!p.tiersWait || tooManyRounds(wait, p.tiers[best])) {
			best = i
		}
	}
	var longer, shorter backoff.Tier
	for _, tiers := range [2][]backoff.Tier{p.tiers, p.lanes} {
		for _, t := range tiers {
			switch {
			case slices.Contains(avoid, t):
			case t < p.tiers[best]:
				shorter = max(shorter, t)
			case longer == 0 || t < longer:
				longer = t
			}
		}
	}
	if tier = cmp.Or(longer, shorter); tier == 0 {
		return p.tiers[best], 0, false
	}
	return tier, p.rest(wait, tier), true
}

func (p *policy) rest(wait time.Duration, tier backoff.Tier) time.Duration {
	if !p.tiersWait {
		return 0
	}
	return max(wait-time.Duration(tier), 0)
}

// total returns how long a message waits that begins on a tier.
func (p *policy) total(wait time.Duration, first backoff.Tier) time.Duration {
	if !p.tiersWait {
		return wait
	}
	total, rest := time.Duration(first), wait-time.Duration(first)
	for i, tier := range slices.Backward(p.tiers) {
		t := time.Duration(tier)
		switch {
		case rest < t:
		case i+1 < len(p.tiers) && tooManyRounds(rest, tier):
			return total + time.Duration(p.tiers[i+1])
		default:
			total += rest / t * t
			rest %= t
		}
	}
	if rest > 0 {
		total += time.Duration(p.tiers[0])
	}
	return total
}

// deadLetter makes a dead letter of the record.
func (d *decision) deadLetter(why retry.DeadReason, from *origin) {
	d.outcome = retry.DeadLettered
	d.record.DeadReason, d.record.DueAt, d.record.Remaining, d.record.Subscriber = why, time.Time{}, 0, from.subscriber
	if d.record.Topic == "" {
		d.record.Topic, d.record.Handler = from.topic, from.handler
	}
}
