package middleware

import (
	"container/list"
	"math"
	"strings"
	"sync"
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
	config      retry.Breaker // with its defaults
	concurrency int           // places of the handler; 0: not known, and no key has a share
	gate        *gate.Gate    // with the decisions of an operator

	mu      sync.Mutex
	all     map[string]*list.Element
	recent  list.List     // the *keyed, the last one that was seen first; forget moves those that are limited
	calls   uint64        // the number of calls of the handler, so far
	usual   time.Duration // a moving average of how long calls of keys within their share take
	episode int           // pauses of the handler because of most keys, so far
	passed  int           // messages that were passed over since the limit of the handler changed
	passing time.Time     // the time until which messages are passed over at most
	good    time.Time     // when a message with a key has succeeded the last time
	logged  time.Time     // when a line about a key was logged
}

// keyed is a key.
type keyed struct {
	name    string
	machine *machine
	seen    time.Time // when its last message came
	parked  uint64    // messages that had to wait, so far
	stage   ticket    // the ticket of the machine when a message had to wait the last time
	prompt  int       // messages that had to wait since then
	asked   time.Time // the end of the time for which an error has requested that the key waits
	tried   int       // the last episode in which it has failed while the handler was limited
	probed  ticket    // the ticket of a probe that ran when the handler paused in place of its keys

	// calls are those that run, and started is the sum of the times when they began.
	calls   int
	started time.Duration
	total   uint64        // the number of its calls, so far
	took    time.Duration // a moving average of its calls
	// over is since when calls hold more than the share, others how many of other keys had begun then. Zero: they do not.
	over   time.Time
	others uint64
	slow   bool
	fast   int // calls in a row that were fast, of a slow key
	// alone is since when no call of another key has begun, of a slow key.
	alone time.Time
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

func newKeys(config retry.Breaker, g *gate.Gate) *keys {
	return &keys{
		config: config, concurrency: g.Concurrency(), gate: g, all: map[string]*list.Element{}, episode: 1,
	}
}

// of returns the key, and remembers it.
func (k *keys) of(name string, now time.Time) *keyed {
	if at, found := k.all[name]; found {
		k.recent.MoveToFront(at)
		one := at.Value.(*keyed)
		one.seen = now
		return one
	}
	if k.recent.Len() >= mostKeys {
		k.forget(now)
	}
	one := &keyed{name: strings.Clone(name), seen: now, machine: newMachineOfKey(k.config, k.concurrency, now)}
	k.all[one.name] = k.recent.PushFront(one)
	return one
}

// forget forgets a key: of those that are not limited, the one that was not seen for the longest time.
func (k *keys) forget(now time.Time) {
	for range mostLooked {
		one := k.recent.Back().Value.(*keyed)
		_, decided := k.gate.Decided(one.name, now)
		limited := decided || one.slow || one.machine.stage != going
		if !limited || now.Sub(one.last()) > max(k.config.Window, k.config.MaxPause) {
			break
		}
		k.recent.MoveToFront(k.recent.Back()) // the next look begins behind it
	}
	delete(k.all, k.recent.Remove(k.recent.Back()).(*keyed).name)
}

// last is when a message of the key came the last time, or was to wait until.
func (one *keyed) last() time.Time {
	if one.machine.stage == paused && one.machine.until.After(one.seen) {
		return one.machine.until
	}
	return one.seen
}

// seen reports whether a key is remembered.
func (k *keys) seen(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all[name] != nil
}

// admit lets a message of a key pass, or returns how long it is to wait until it asks again. limited states that the
// handler is limited. With force the message passes in any case.
func (k *keys) admit(name string, limited, force bool, now time.Time) (one *keyed, of ticket, wait time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	one = k.of(name, now)
	if !force {
		if wait = k.wait(one, limited, now); wait > 0 {
			return nil, 0, one.park(wait)
		}
	}
	one.prompt = 0
	k.calls++
	one.total++
	one.calls++
	one.started += now.Sub(one.machine.begun)
	k.watch(one, now)
	if of = one.machine.ticket; of.limited() {
		one.machine.called(now)
	}
	return one, of, 0
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

// wait returns how long a message of the key is to wait; 0: it passes.
func (k *keys) wait(one *keyed, limited bool, now time.Time) time.Duration {
	if d, found := k.gate.Decided(one.name, now); found && one.calls >= d.Limit {
		if d.Limit == 0 {
			return min(d.Until.Sub(now), longestWait)
		}
		return max(min(one.turn(now), k.config.MaxPause), leastWait)
	}
	if limited && one.tried == k.episode && k.passed < mostPassed && now.Before(k.passing) {
		k.passed++
		return leastWait
	}
	if k.watch(one, now); one.slow && one.calls >= k.slowLimit() {
		return max(min(one.turn(now), k.config.MaxPause), leastWait)
	}
	m := one.machine
	m.tick(now, m.flight)
	switch {
	case m.stage == going || limited && m.stage != paused:
		return 0
	case m.stage == paused:
		return max(m.until.Sub(now), leastWait)
	case m.flight >= m.limit():
		return max(m.lasting()/4, leastWait) // the longer the outage, the fewer copies
	default:
		return 0
	}
}

// exceeds reports whether so many calls are more than the share of a key.
func (k *keys) exceeds(calls int) bool {
	return k.concurrency > 1 && float64(calls) > k.config.Share*float64(k.concurrency)
}

// slowLimit is how many places a slow key has: one less than its share, and one at least.
func (k *keys) slowLimit() int {
	return max(int(math.Ceil(k.config.Share*float64(k.concurrency)))-1, 1)
}

// watch finds out whether a key is slow: for longer than Pause its calls have held more than its share, and have taken
// much longer than those of others, of which some were called meanwhile.
func (k *keys) watch(one *keyed, now time.Time) {
	others := k.calls - one.total
	if one.slow && (others != one.others || one.alone.IsZero()) {
		one.others, one.alone = others, now
	} else if one.slow && now.Sub(one.alone) > k.config.Window {
		one.slow = false
	}
	if !k.exceeds(one.calls) {
		one.over = time.Time{}
		return
	}
	if one.over.IsZero() {
		one.over, one.others = now, others
	}
	if one.slow || now.Sub(one.over) <= k.config.Pause || others == one.others || k.usual == 0 {
		return
	}
	if one.turn(now) > muchSlower*k.usual {
		one.slow, one.fast, one.alone = true, 0, time.Time{}
	}
}

// turn is about how long a call of the key takes, also where none of them has ended.
func (one *keyed) turn(now time.Time) time.Duration {
	if one.calls == 0 {
		return one.took
	}
	calls := time.Duration(one.calls)
	return max((calls*now.Sub(one.machine.begun)-one.started)/calls, one.took)
}

// left ends a call of a key.
func (k *keys) left(one *keyed, of ticket, began, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	took := now.Sub(began)
	if !one.slow && !k.exceeds(one.calls) {
		average(&k.usual, took)
	}
	average(&one.took, took)
	one.calls--
	one.started -= began.Sub(one.machine.begun)
	if !k.exceeds(one.calls) {
		one.over = time.Time{}
	}
	switch {
	case !one.slow:
	case took > muchSlower*k.usual:
		one.fast = 0
	default:
		if one.fast++; one.fast >= k.slowLimit() {
			one.slow, one.took = false, took
		}
	}
	if of.limited() {
		one.machine.returned(of, now)
	}
}

// average adds a duration to a moving average, of which the last sixteen are the most.
func average(of *time.Duration, took time.Duration) {
	if *of == 0 {
		*of = max(took, 1)
		return
	}
	*of += (took - *of) / 16
}

// outcome counts the outcome of a key. It reports whether it is that of a failed probe of the key, and whether the key
// pauses because of it.
func (k *keys) outcome(one *keyed, of ticket, v verdict, now time.Time) (probe, pauses bool, l line) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := one.machine.ticket
	probe, l = one.machine.outcome(of, v, now)
	probe = probe || v == bad && of.limited() && of == one.probed
	pauses = one.machine.stage == paused && one.machine.ticket != before
	if v == good {
		k.good = now
	}
	return probe, pauses, k.about(one, l, now)
}

// failed records that a key has failed while the handler is limited. It reports whether that is news.
func (k *keys) failed(one *keyed) (first bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	first = one.tried != k.episode
	one.tried = k.episode
	return first
}

// hold pauses a key for a time that an error requests.
func (k *keys) hold(one *keyed, of ticket, wait time.Duration, now time.Time) line {
	k.mu.Lock()
	defer k.mu.Unlock()
	if until := now.Add(wait); until.After(one.asked) {
		one.asked = until
	}
	return k.about(one, one.machine.rule(of, wait, "retry after", now), now)
}

// most reports whether more than half of the keys that were seen within Window have paused, two at least, and no
// message with a key has succeeded since. Then it is what all depend on: the keys are as new, and the handler pauses in
// their place.
func (k *keys) most(now time.Time) (failing, seen int, together bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for at := k.recent.Front(); at != nil; at = at.Next() {
		one := at.Value.(*keyed)
		if now.Sub(one.last()) > k.config.Window {
			continue
		}
		seen++
		fails := one.machine.stage == paused || one.machine.stage == probing
		// one that waits because its error says so is no sign about others, nor is one that fails while others succeed
		if fails && !now.Before(one.asked) && !one.machine.since.Before(k.good) {
			failing++
		}
	}
	if failing < 2 || 2*failing <= seen {
		return failing, seen, false
	}
	for at := k.recent.Front(); at != nil; at = at.Next() {
		one := at.Value.(*keyed)
		if one.machine.stage == probing {
			one.probed = one.machine.ticket
		}
		if one.machine.stage != going && !now.Before(one.asked) {
			one.machine.next(going)
		}
		one.machine.window.clear()
	}
	k.episode++
	k.passed = 0
	return failing, seen, true
}

// again is called when the handler's limit changes, with its last pause.
func (k *keys) again(pause time.Duration, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.passed, k.passing = 0, now.Add(max(k.config.Pause, min(pause, k.config.MaxPause)/4))
}

// about adds the key to a line, of which there is one a second at most: thousands of keys can fail together.
func (k *keys) about(one *keyed, l line, now time.Time) line {
	if l.text == "" || now.Sub(k.logged) < time.Second {
		return line{}
	}
	k.logged = now
	l.fields = l.fields.Add(watermill.LogFields{"key": one.name})
	return l
}

// health describes the keys that are limited, and those whose messages had to wait.
func (k *keys) health(now time.Time) (all []gate.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for at := k.recent.Front(); at != nil; at = at.Next() {
		one := at.Value.(*keyed)
		h := gate.Key{Key: one.name, Parked: one.parked}
		switch m := one.machine; {
		case m.stage != going:
			h.Paused, h.Limit = "failing", max(m.limit(), 0)
			if m.stage == paused {
				h.Until = m.until
			}
			if now.Before(one.asked) {
				h.Paused = "retry after"
			}
		case one.slow:
			h.Paused, h.Limit = "slow", k.slowLimit()
		}
		if h.Paused != "" || h.Parked > 0 {
			all = append(all, h)
		}
	}
	return all
}
