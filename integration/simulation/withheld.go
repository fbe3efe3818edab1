package simulation

import (
	"regexp"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
)

const (
	// publishTimeout is how long a confirm is awaited. Then docs/outcomes.md has: "the next longer tier, after a minute at
	// the earliest, or the same as for a lost connection as soon as that is lost".
	publishTimeout = 30 * time.Second
	copiedAgain    = time.Minute
	// longest is how long confirms are withheld: a third copy does not follow, and no message is held for as long as
	// consumerTimeout.
	longest = 85 * time.Second
)

// silent returns the queues whose confirms are withheld: one tier, or a kind of queues.
func (w *world) silent(f fault) *regexp.Regexp {
	if f.one() {
		return regexp.MustCompile("^" + regexp.QuoteMeta(w.tier(f.pick)) + "$")
	}
	return regexp.MustCompile(f.fills())
}

// one reports whether a fault meets one tier.
func (f fault) one() bool { return f.pick/16%2 == 0 }

// takes reports whether the queues that do not answer take what is published.
func (f fault) takes() bool { return f.pick/32%2 == 0 }

// ends reports whether all connections end, before the confirms come.
func (f fault) loses() bool { return f.pick/64%3 == 0 }

// withhold makes queues answer late, or never.
func (w *world) withhold(f fault) {
	if f.takes() && w.plan.shape == keepsOrder {
		for range (f.lasts + confirmTime) / publishTimeout { // a partition that is full goes back after each
			w.ledger.lost(f.lasts)
		}
	}
	w.broker.Withhold(w.silent(f), f.takes())
	time.Sleep(f.lasts)
	switch {
	case f.loses():
		w.ledger.lost(0)
		for number := range w.processes {
			p := w.running(number)
			p.lostAt.Store(time.Now().UnixNano())
			p.disturb(model.Reset)
		}
	case f.lasts > publishTimeout-confirmTime:
		w.ledger.disturbed(copiedAgain)
	}
	w.broker.Release()
}

// awaits reports whether a call has ended and its outcome is not known, or whether that may be.
func (p plan) awaits(m *letter) bool {
	return p.hops(m.id) || slices.ContainsFunc(m.flights, func(f *flight) bool {
		return f.called && !f.process.dead.Load() && !f.ended.IsZero() && f.settled.IsZero()
	})
}

// doubled reports whether there are two messages in place of one, or may be.
func (p plan) doubled(m *letter) bool { return p.copies() > 1 && (p.hops(m.id) || m.calls > 1) }

// hops reports whether a message can go from tier to tier without a call.
func (p plan) hops(id string) bool {
	how := p.fate(id).how
	return p.breaker || how == requests || how == snoozes
}

// copies is how many copies of a message can follow a call: one, and another one where no confirm comes.
func (p plan) copies() int {
	most := 1
	for _, f := range p.faults {
		if f.kind == withheld && f.takes() && f.lasts > publishTimeout-confirmTime {
			most++
		}
	}
	return most
}
