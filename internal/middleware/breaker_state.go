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
	present atomic.Uint64 // the machine's ticket

	mu      sync.Mutex // not held while functions of the app run, its logger's among them
	machine *machine
	keys    keys // with a Key
	limit   int  // the limit that the gate has
	timer   *time.Timer
	armed   time.Time // when the timer ends
}

func newBreaker(
	config *retry.Breaker, g *gate.Gate, logger watermill.LoggerAdapter, fields watermill.LogFields,
) *breaker {
	m := newMachine(handlerSubject, config, g.Concurrency(), time.Now())
	return &breaker{
		gate: g, logger: logger, fields: fields, counts: m.counts, machine: m, limit: gate.None,
		keys: keys{all: map[string]*keyed{}},
	}
}

// A pass is what a message has from its breaker: the zero value has no key, and a ticket that is not limited.
type pass struct {
	of    ticket
	key   *keyed // nil: it has no key
	ofKey ticket
	began time.Time // when a message with a key was let in
}

// begin is called before the handler is, and leave after the message is settled.
func (b *breaker) begin() ticket {
	if present := ticket(b.present.Load()); !present.limited() {
		return present
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.apply()
	return b.machine.called(time.Now())
}

func (b *breaker) leave(p *pass) {
	if p.key == nil && !p.of.limited() {
		return
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.key != nil {
		b.left(p, now)
	}
	b.machine.returned(p.of, now)
	b.apply()
}

// wants reports whether an outcome would be counted.
func (b *breaker) wants(of ticket, v verdict) bool { return v != noSign && (b.counts || of.limited()) }

// report gets the outcome of a message, and reports whether it was a failed probe.
func (b *breaker) report(p *pass, v verdict) (probe bool) {
	if !b.wants(p.of, v) {
		return false
	}
	var failed, repeated bool
	var ofKey, ofHandler line
	now := time.Now()
	b.mu.Lock()
	if p.key != nil {
		probe, repeated, ofKey, ofHandler = b.outcome(p, v, now)
	}
	// in the ramp, more failures of one key say nothing about the others
	if (p.key == nil || p.of.limited()) && (!repeated || b.machine.stage != ramping) {
		failed, ofHandler = b.machine.outcome(p.of, v, now)
	}
	b.apply()
	b.mu.Unlock()
	b.log(ofKey)
	b.log(ofHandler)
	return probe || failed
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

// apply makes known what the machine has decided.
func (b *breaker) apply() {
	b.present.Store(uint64(b.machine.ticket))
	if limit := b.machine.limit(); limit != b.limit {
		b.limit = limit
		b.keys.passed = 0
		b.keys.passing = time.Now().Add(max(b.machine.config.Pause, b.machine.lasting()/4))
		b.gate.Set(gate.Failing, limit)
	}
	due := b.machine.due()
	// where no place is taken, only a subscription that follows the limit has others than those of handlers
	if due.IsZero() || b.machine.stage != paused && b.machine.flight == 0 && !b.gate.Attached() || b.gate.Ended() {
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
