package middleware

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/warning"
	"github.com/tieredretry/watermill-retry/retry"
)

// A breaker pauses one handler. Its machine decides, and the handler's gate has the limit.
type breaker struct {
	gate    *gate.Gate
	logger  watermill.LoggerAdapter
	fields  watermill.LogFields
	counts  bool          // whether the machine counts: a Breaker is configured
	keys    *keys         // nil: the breaker has no Key
	present atomic.Uint64 // the machine's ticket

	mu      sync.Mutex // not held while functions of the app run, its logger's among them
	machine *machine
	limit   int // the limit that the gate has
	timer   *time.Timer
	armed   time.Time // when the timer ends
}

func newBreaker(
	config *retry.Breaker, g *gate.Gate, logger watermill.LoggerAdapter, fields watermill.LogFields,
) *breaker {
	m := newMachine(config, g.Concurrency(), time.Now())
	b := &breaker{gate: g, logger: logger, fields: fields, counts: m.counts, machine: m, limit: gate.None}
	if config != nil && config.Key != nil {
		b.keys = newKeys(m.config, g)
	}
	return b
}

// A pass is what a message has from its breaker: the zero value has no key, and a ticket that is not limited.
type pass struct {
	of    ticket
	key   *keyed // nil: it has no key
	ofKey ticket
	began time.Time // when a message with a key was let in
}

// admit lets a message with a key in, or returns how long it is to wait. With force it does not wait.
func (b *breaker) admit(p *pass, key string, force bool) (wait time.Duration) {
	p.began = time.Now()
	p.key, p.ofKey, wait = b.keys.admit(key, p.of.limited(), force, p.began)
	return wait
}

// begin is called before the handler is, and leave after the message is settled.
func (b *breaker) begin() ticket {
	if present := ticket(b.present.Load()); !present.limited() {
		return present
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine.ticket.limited() {
		b.machine.called(time.Now())
		b.apply()
	}
	return b.machine.ticket
}

func (b *breaker) leave(p *pass) {
	if p.key != nil {
		b.keys.left(p.key, p.ofKey, p.began, time.Now())
	}
	if !p.of.limited() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.machine.returned(p.of, time.Now())
	b.apply()
}

// wants reports whether an outcome would be counted.
func (b *breaker) wants(of ticket, v verdict) bool { return v != noSign && (b.counts || of.limited()) }

// report gets the outcome of a message, and reports whether it was a failed probe.
func (b *breaker) report(p *pass, v verdict) (probe bool) {
	if !b.wants(p.of, v) {
		return false
	}
	repeated := false
	if p.key != nil {
		if probe, repeated = b.reportKey(p, v); !p.of.limited() {
			return probe
		}
	}
	b.mu.Lock()
	var ofHandler bool
	var l line
	if !repeated || b.machine.stage != ramping {
		ofHandler, l = b.machine.outcome(p.of, v, time.Now())
	}
	if p.of.limited() || b.machine.stage != going {
		b.apply()
	}
	b.mu.Unlock()
	b.log(l)
	return probe || ofHandler
}

// reportKey counts an outcome for its key. It reports whether it was a failed probe of the key, and whether the key has
// failed before while the handler was limited: in the ramp, more failures of one key say nothing about the others.
func (b *breaker) reportKey(p *pass, v verdict) (probe, repeated bool) {
	now := time.Now()
	probe, pauses, l := b.keys.outcome(p.key, p.ofKey, v, now)
	b.log(l)
	switch {
	case p.of.limited() && v == bad:
		repeated = !b.keys.failed(p.key)
	case pauses && !p.of.limited():
		b.pauseTogether(now)
	}
	return probe, repeated
}

// pauseTogether pauses the handler where most of its keys are paused.
func (b *breaker) pauseTogether(now time.Time) {
	failing, seen, together := b.keys.most(now)
	if !together {
		return
	}
	b.mu.Lock()
	l := b.machine.together(now, failing, seen)
	b.apply()
	b.mu.Unlock()
	b.log(l)
}

// holdKey pauses the key of a message because its error says how long.
func (b *breaker) holdKey(p *pass, wait time.Duration) {
	b.log(b.keys.hold(p.key, p.ofKey, wait, time.Now()))
}

// pauseFor pauses the handler because of a rule or an error.
func (b *breaker) pauseFor(of ticket, wait time.Duration, rule string) {
	b.mu.Lock()
	l := b.machine.rule(of, wait, rule, time.Now())
	b.apply()
	b.mu.Unlock()
	b.log(l)
}

// Changed stops the timer when the handler's subscriptions have ended, and starts it when one begins.
func (b *breaker) Changed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.apply()
}

// Keys implements gate.Watcher.
func (b *breaker) Keys() []gate.Key {
	if b.keys == nil {
		return nil
	}
	return b.keys.health(time.Now())
}

// Seen implements gate.Watcher.
func (b *breaker) Seen(key string) bool { return b.keys != nil && b.keys.seen(key) }

// apply makes known what the machine has decided.
func (b *breaker) apply() {
	b.present.Store(uint64(b.machine.ticket))
	if limit := b.machine.limit(); limit != b.limit {
		b.limit = limit
		if b.keys != nil {
			b.keys.again(b.machine.pause, time.Now())
		}
		b.gate.Set(gate.Failing, limit)
	}
	due := b.machine.due()
	if b.machine.stage != paused && b.machine.flight == 0 && !b.gate.Attached() {
		// no place is taken: only a subscription that follows the limit has others than those of handlers
		due = time.Time{}
	}
	if due.IsZero() || b.gate.Ended() {
		b.stop()
		return
	}
	if b.timer == nil || due.Before(b.armed) {
		b.stop()
		b.arm(due)
	}
}

func (b *breaker) stop() {
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
}

func (b *breaker) arm(due time.Time) {
	var timer *time.Timer
	timer = time.AfterFunc(time.Until(due), func() { b.tick(&timer) })
	b.timer, b.armed = timer, due
}

// tick is called by a timer. What is due may have been put off meanwhile: then apply starts another one.
func (b *breaker) tick(by **time.Timer) {
	b.mu.Lock()
	var l line
	if b.timer == *by {
		b.timer = nil
		l = b.machine.tick(time.Now(), b.gate.Taken())
		b.apply()
	}
	b.mu.Unlock()
	b.log(l)
}

func (b *breaker) log(l line) {
	switch {
	case l.text == "":
	case l.warn:
		warning.Log(b.logger, l.text, b.fields.Add(l.fields))
	default:
		b.logger.Info(l.text, b.fields.Add(l.fields))
	}
}
