package simulation

import (
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/retry"
)

// An app whose handlers pause when too many messages fail has an outage: each call fails. docs/outages.md has what
// follows: the handler pauses, then one message after the other shows whether it still lasts, after pauses that double,
// and these failures do not count. Then it goes on.

const (
	leastFailures = 5
	longestPause  = 4 * time.Second
	breakerWindow = 10 * time.Second // the default
	// opensAt is the number of failures in breakerWindow with which a breaker is open, whatever was before: the window has
	// five times the least outcomes, and half of them is enough.
	opensAt = 5*leastFailures/2 + 1
	// opensKeyAt is the same for a key.
	opensKeyAt = 5*leastOfTenant/2 + 1
	// soonest is how long a pause lasts at the least: a second, shortened at random by up to a quarter.
	soonest = time.Second * 3 / 4
)

// outage is what a handler of a process does in it.
type outage struct {
	failed []time.Time // the last opensAt failures
	ended  []time.Time // the calls in breakerWindow
	opened time.Time   // when its breaker was open at the latest; zero: not yet
	calls  int         // after that
	last   time.Time   // the last one of these
	streak int         // successes since the last failure
	// asked is when a call of a key has requested a delay, and until its end.
	asked, until time.Time
}

// isDown reports whether each call fails.
func (p plan) isDown(since time.Duration) bool {
	return p.breaker && since >= p.downAt && since < p.downAt+p.down
}

// outageOf returns what is known of a handler, or of a key of it.
func (l *ledger) outageOf(p *process, queue, key string) *outage {
	of := handlerIn{p, queue, key}
	if l.outages[of] == nil {
		l.outages[of] = &outage{}
	}
	return l.outages[of]
}

type handlerIn struct {
	process *process
	queue   string
	key     string // empty: its breaker is not by key
}

// limits are those of a call when it begins.
type limits struct {
	handler bool // is limited
	probe   bool // the call decides whether the handler goes on, or its key
	share   int  // the places of a slow key; 0: it is not slow
}

// limits returns those of a message that a handler gets now.
func (p *process) limits(queue, key string) (is limits) {
	if !p.world.plan.breaker || p.connection == nil {
		return limits{}
	}
	for _, s := range p.connection.Health().Subscriptions {
		if s.Queue != queue {
			continue
		}
		is.handler = is.handler || slices.Contains(s.Paused, "failing")
		is.probe = is.probe || s.PausedLimit == 1
		switch k := s.Keys[key]; k.Paused {
		case "failing":
			is.probe = is.probe || k.Limit == 1 && len(s.Paused) == 0
		case "slow":
			is.share = k.Limit
		}
	}
	is.probe = is.probe && p.world.plan.isDown(time.Since(p.world.ledger.began))
	return is
}

// undisturbed reports whether the breaker knows the outcome of each call, and has a message in its pauses. A message of
// a key that no tier takes is called in its pauses, too.
func (l *ledger) undisturbed() bool {
	l.faults.Lock()
	defer l.faults.Unlock()
	waits := l.plan.tenants == nil || !l.plan.mayHave(full, nackAt, noTier, noExchange, withheld)
	return waits && len(l.losses) == 0 && !l.plan.mayHave(hangs) && !l.plan.replaces()
}

// isProbe checks that a handler whose breaker is open, or its key, has one call at a time, after pauses that double.
func (l *ledger) isProbe(p *process, m *letter) {
	o := l.outageOf(p, m.queue, l.plan.tenant(m.id))
	if now := time.Now(); now.After(o.asked) && now.Before(o.until.Add(-tick)) && l.undisturbed() {
		l.violate(m.id, "process %d calls for %s, and its key has requested a delay that ends in %v", p.number, m.id,
			time.Until(o.until))
	}
	if o.opened.IsZero() || time.Since(o.opened) < noted/10 || !l.plan.isDown(time.Since(l.began)) || !l.undisturbed() {
		return
	}
	o.calls++
	switch since := time.Since(o.last); {
	case o.calls > 1 && since < soonest:
		l.violate(m.id, "process %d calls for %s %v after another call, while its breaker is open", p.number, m.id, since)
	case o.calls > 3+int(time.Since(o.opened)/(longestPause*3/4)):
		l.violate(m.id, "process %d calls for %s, the %dth message in %v while its breaker is open", p.number, m.id, o.calls,
			time.Since(o.opened))
	}
	o.last = time.Now()
}

// decides notes what a call says about others.
func (l *ledger) decides(p *process, m *letter, err error) {
	o, opensAt := l.outageOf(p, m.queue, l.plan.tenant(m.id)), opensAt
	if l.plan.tenants != nil {
		opensAt = opensKeyAt
	}
	isOld := func(at time.Time) bool { return time.Since(at) > breakerWindow }
	o.ended = append(slices.DeleteFunc(o.ended, isOld), time.Now())
	if err == nil {
		o.streak++
		return
	}
	o.streak = 0
	if delay := l.plan.asks(m, err); delay > 0 {
		o.asked, o.until = time.Now(), latest(o.until, time.Now().Add(delay))
	}
	if !isDownErr(err) {
		return
	}
	m.failedDown++
	if o.failed = append(o.failed, time.Now()); len(o.failed) > opensAt {
		o.failed = o.failed[1:]
	}
	if len(o.failed) == opensAt && time.Since(o.failed[0]) < breakerWindow && o.opened.IsZero() {
		o.opened = time.Now()
	}
}

// pausesBy checks that a handler pauses because of what it knows from breakerWindow alone.
func (l *ledger) pausesBy(p *process, queue string, known int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ended := l.outageOf(p, queue, "").ended; known > len(ended) && l.undisturbed() && !l.plan.produces {
		l.violate("", "process %d pauses %s by %d outcomes, and had %d in %v", p.number, queue, known, len(ended),
			breakerWindow)
	}
}

// countsNot checks the outcome of a call that has shown that the outage lasts.
func (l *ledger) countsNot(m *letter, f *flight, e retry.Event) {
	counted := e.Outcome == retry.Retried || e.Outcome == retry.DeadLettered &&
		e.Record.DeadReason == retry.DeadReasonExhausted
	if f.probe && f.down && counted && l.undisturbed() {
		l.violate(m.id, "%s is %s because of an outage that its call was to show", m.id, e.Outcome)
	}
}

// goesOn checks that a handler is not limited any more when many messages have succeeded.
func (w *world) goesOn(p *process, s retry.SubscriptionHealth) {
	l := w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, k := range s.Keys {
		if streak := l.outageOf(p, s.Queue, key).streak; streak > 3*w.plan.concurrency && k.Paused == "failing" &&
			!w.plan.produces && l.undisturbed() {
			l.violate("", "process %d limits %s to %d messages after %d successes", p.number, key, k.Limit, streak)
		}
	}
	if streak := l.outageOf(p, s.Queue, "").streak; streak > 3*w.plan.concurrency &&
		slices.Contains(s.Paused, "failing") && !w.plan.produces && l.undisturbed() {
		l.violate("", "process %d is limited to %d messages of %s after %d successes", p.number, s.PausedLimit, s.Queue,
			streak)
	}
}
