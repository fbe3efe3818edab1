package middleware

import (
	"cmp"
	"container/list"
	"math"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/retry"
)

// keys are what a breaker with a Key knows of the keys of its handler. Each key has a machine of its own, without a
// timer: a message of the key asks what is due. A message that may not pass waits on a tier and asks again.
//
// The breaker's own machine pauses the handler as a whole where most keys are paused together. It counts the outcomes
// of keys only while the handler is limited.
type keys struct {
	all     map[string]*keyed
	recent  list.List     // the *keyed, the last one that was seen first; forget moves those that are limited
	latest  *keyed        // the key that was called last
	called  time.Time     // when it was called
	earlier time.Time     // when another key was called before it
	usual   time.Duration // a moving average of how long calls of keys within their share take
	passed  int           // messages that were passed over since the limit of the handler changed
	passing time.Time     // the time until which messages are passed over at most
	good    time.Time     // when a message with a key has succeeded the last time
	logged  time.Time     // when a line about a key was logged
}

// keyed is a key.
type keyed struct {
	name    string
	place   *list.Element // its place in recent
	machine *machine
	seen    time.Time // when its last message came
	parked  uint64    // messages that had to wait, so far
	stage   ticket    // the ticket of the machine when a message had to wait the last time
	prompt  int       // messages that had to wait since then
	asked   time.Time // the end of the time for which an error has requested that the key waits
	tried   bool      // it has failed while the handler was limited, since most keys paused together
	probed  ticket    // the ticket of a probe that ran when the handler paused in place of its keys

	// calls are those that run, and started is the sum of the times when they began.
	calls   int
	started time.Duration
	took    time.Duration // a moving average of its calls
	over    time.Time     // since when calls hold more than the share; zero: they do not
	slow    bool
	fast    int // calls in a row that were fast
}

const (
	// mostKeys is how many keys a handler remembers.
	mostKeys = 10_000
	// mostLooked is how many keys that are limited are passed over to forget another one.
	mostLooked = 100
	// mostPassed is how many messages of keys that have failed are passed over while the handler is limited, until one
	// of them is let through. Where few messages come, it is let through after a quarter of the last pause.
	mostPassed = 100
	// mostPrompt is how many messages of a key ask as soon as they may pass, in each of its stages.
	mostPrompt = 32
	// leastWait is how long a message of a key waits at least until it asks again: a copy is a publish.
	leastWait = time.Second
	// longestWait is how long a message of a key that an operator has paused waits until it asks again: the operator may
	// resume the key.
	longestWait = 10 * time.Minute
	// muchSlower is how many times longer than those of others the calls of a slow key take.
	muchSlower = 2
)

// key returns the key with a name, and remembers it.
func (b *breaker) key(name string, now time.Time) *keyed {
	one := b.keys.all[name]
	if one == nil {
		if b.keys.recent.Len() >= mostKeys {
			b.forget(now)
		}
		own := newMachine(keySubject, &b.machine.config, b.gate.Concurrency(), now)
		one = &keyed{name: strings.Clone(name), machine: own}
		one.place = b.keys.recent.PushFront(one)
		b.keys.all[one.name] = one
	}
	one.seen = now
	b.keys.recent.MoveToFront(one.place)
	return one
}

// forget forgets a key: of those that are not limited, the one that was not seen for the longest time.
func (b *breaker) forget(now time.Time) {
	recent := &b.keys.recent
	for range mostLooked {
		one := recent.Back().Value.(*keyed)
		_, decided := b.gate.Decided(one.name, now)
		limited := decided || one.slow || one.machine.stage != going
		if !limited || now.Sub(one.last()) > max(b.machine.config.Window, b.machine.config.MaxPause) {
			break
		}
		recent.MoveToFront(recent.Back()) // the next look begins behind it
	}
	delete(b.keys.all, recent.Remove(recent.Back()).(*keyed).name)
}

// last is when a message of the key came the last time, or was to wait until.
func (one *keyed) last() time.Time {
	if one.machine.stage == paused && one.machine.until.After(one.seen) {
		return one.machine.until
	}
	return one.seen
}

// admit lets a message of a key in, or returns how long it is to wait until it asks again. With force it is let in.
func (b *breaker) admit(p *pass, name string, force bool) (wait time.Duration) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.key(name, now)
	b.watch(one, now)
	if !force {
		if wait = b.wait(one, p.of.limited(), now); wait > 0 {
			return one.park(wait)
		}
	}
	if b.keys.latest != one {
		b.keys.latest, b.keys.earlier = one, b.keys.called
	}
	b.keys.called = now
	one.prompt = 0
	one.calls++
	one.started += now.Sub(one.machine.begun)
	b.watch(one, now)
	p.key, p.ofKey, p.began = one, one.machine.called(now), now
	return 0
}

// park counts a message that is to wait, and returns for how long. A few ask as soon as they may pass. The others wait
// for as long as the key pauses: the more there are, the more publishes each of their questions is.
func (one *keyed) park(wait time.Duration) time.Duration {
	one.parked++
	if one.stage != one.machine.ticket {
		one.stage, one.prompt = one.machine.ticket, 0
	}
	if one.prompt++; one.prompt > mostPrompt {
		longer := one.machine.lasting()
		if one.machine.stage == going { // it is slow, or an operator limits it
			longer = one.machine.config.MaxPause
		}
		wait = max(wait, longer)
	}
	return wait
}

// wait returns how long a message of the key is to wait; 0: it passes. limited states that the handler is limited.
func (b *breaker) wait(one *keyed, limited bool, now time.Time) time.Duration {
	m := one.machine
	m.tick(now, m.flight)
	switch d, decided := b.gate.Decided(one.name, now); {
	case decided && d.Limit == 0:
		return min(d.Until.Sub(now), longestWait)
	case decided && one.calls >= d.Limit, one.slow && one.calls >= m.slowLimit():
		return max(min(one.turn(now), m.config.MaxPause), leastWait)
	case limited && one.tried && b.keys.passed < mostPassed && now.Before(b.keys.passing):
		b.keys.passed++
		return leastWait
	case m.stage == paused:
		return max(m.until.Sub(now), leastWait)
	case m.stage != going && !limited && m.flight >= m.limit():
		return max(m.lasting()/4, leastWait) // the longer the outage, the fewer copies
	default:
		return 0
	}
}

// exceeds reports whether the calls of the key are more than its share.
func (one *keyed) exceeds() bool {
	m := one.machine
	return m.concurrency > 1 && float64(one.calls) > m.config.Share*float64(m.concurrency)
}

// slowLimit is how many places a slow key has: one less than its share, and one at least.
func (m *machine) slowLimit() int {
	return max(int(math.Ceil(m.config.Share*float64(m.concurrency)))-1, 1)
}

// watch finds out whether a key is slow: for longer than Pause its calls have held more than its share, and have taken
// much longer than those of others, of which some were called meanwhile.
func (b *breaker) watch(one *keyed, now time.Time) {
	others, config := b.keys.called, &one.machine.config
	if b.keys.latest == one {
		others = b.keys.earlier
	}
	one.slow = one.slow && now.Sub(others) <= config.Window // else it is alone
	switch {
	case !one.exceeds():
		one.over = time.Time{}
	case one.over.IsZero():
		one.over = now
	case !one.slow && now.Sub(one.over) > config.Pause && others.After(one.over) && b.keys.usual > 0:
		one.slow, one.fast = one.turn(now) > muchSlower*b.keys.usual, 0
	}
}

// turn is about how long a call of a key takes that has calls, also where none of them has ended.
func (one *keyed) turn(now time.Time) time.Duration {
	calls := time.Duration(one.calls)
	return max((calls*now.Sub(one.machine.begun)-one.started)/calls, one.took)
}

// left ends a call of a key.
func (b *breaker) left(p *pass, now time.Time) {
	one, took := p.key, now.Sub(p.began)
	if !one.slow && !one.exceeds() {
		average(&b.keys.usual, took)
	}
	average(&one.took, took)
	one.calls--
	one.started -= p.began.Sub(one.machine.begun)
	if one.fast++; took > muchSlower*b.keys.usual {
		one.fast = 0
	} else if one.slow && one.fast >= one.machine.slowLimit() {
		one.slow, one.took = false, took
	}
	one.machine.returned(p.ofKey, now)
}

// average adds a duration to a moving average, of which the last sixteen are the most.
func average(of *time.Duration, took time.Duration) {
	*of = cmp.Or(*of, max(took, 1))
	*of += (took - *of) / 16
}

// outcome counts the outcome of a key. It reports whether it is that of a failed probe of the key, and whether it is
// one failure more while the handler is limited. The handler pauses where most of its keys do.
func (b *breaker) outcome(p *pass, v verdict, now time.Time) (probe, repeated bool, ofKey, ofHandler line) {
	one, before := p.key, p.key.machine.ticket
	probe, ofKey = one.machine.outcome(p.ofKey, v, now)
	probe = probe || v == bad && p.ofKey.limited() && p.ofKey == one.probed
	switch {
	case v == good:
		b.keys.good = now
	case p.of.limited():
		repeated, one.tried = one.tried, true
	case one.machine.stage == paused && one.machine.ticket != before:
		ofHandler = b.together(now)
	}
	return probe, repeated, b.about(one, ofKey, now), ofHandler
}

// together pauses the handler where more than half of the keys that were seen within Window have paused, two at least,
// and no message with a key has succeeded since. Then it is what all depend on, and the keys are as new.
func (b *breaker) together(now time.Time) (l line) {
	failing, seen := 0, 0
	for _, one := range b.keys.all {
		if now.Sub(one.last()) > b.machine.config.Window {
			continue
		}
		seen++
		fails := one.machine.stage == paused || one.machine.stage == probing
		// one that waits because its error says so is no sign about others, nor is one that fails while others succeed
		if fails && !now.Before(one.asked) && !one.machine.since.Before(b.keys.good) {
			failing++
		}
	}
	if failing < 2 || 2*failing <= seen {
		return line{}
	}
	for _, one := range b.keys.all {
		if one.machine.stage == probing {
			one.probed = one.machine.ticket
		}
		if one.machine.stage != going && !now.Before(one.asked) {
			one.machine.next(going)
		}
		one.machine.window.clear()
		one.tried = false
	}
	if b.machine.stage == going {
		l = b.machine.opens(now, watermill.LogFields{"keys_failing": failing, "keys": seen})
	}
	return l
}

// hold pauses the key of a message for a time that its error requests.
func (b *breaker) hold(p *pass, wait time.Duration) {
	now := time.Now()
	b.mu.Lock()
	if until := now.Add(wait); until.After(p.key.asked) {
		p.key.asked = until
	}
	l := b.about(p.key, p.key.machine.rule(p.ofKey, wait, "retry after", now), now)
	b.mu.Unlock()
	b.log(l)
}

// about adds the key to a line, of which there is one a second at most: thousands of keys can fail together.
func (b *breaker) about(one *keyed, l line, now time.Time) line {
	if l.text == "" || now.Sub(b.keys.logged) < time.Second {
		return line{}
	}
	b.keys.logged = now
	l.fields = l.fields.Add(watermill.LogFields{"key": one.name})
	return l
}

// Keys implements gate.Watcher.
func (b *breaker) Keys() map[string]retry.KeyHealth {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]retry.KeyHealth{}
	for name, one := range b.keys.all {
		h := retry.KeyHealth{Parked: one.parked}
		switch m := one.machine; {
		case m.stage != going:
			h.Paused, h.Limit = string(gate.Failing), m.limit()
			if m.stage == paused {
				h.Until = m.until
			}
			if time.Now().Before(one.asked) {
				h.Paused = "retry after"
			}
		case one.slow:
			h.Paused, h.Limit = "slow", m.slowLimit()
		}
		if h.Paused != "" || h.Parked > 0 {
			all[name] = h
		}
	}
	return all
}

// Seen implements gate.Watcher.
func (b *breaker) Seen(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.keys.all[key] != nil
}
