package simulation

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/retry"
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

// Which connections are lost: all of them at the end, and those that consume before it.
const (
	everything = "" // the name of a connection begins with it
	publishers = "watermill-retry publisher"
	consumers  = "watermill-retry subscriber"
	none       = "none"
)

// loses is which connections are lost.
func (f fault) loses() string { return []string{everything, publishers, consumers, none}[f.pick/64%4] }

// withhold makes queues answer late, or never.
func (w *world) withhold(f fault) {
	if f.takes() && w.plan.shape == keepsOrder {
		for range (f.lasts + confirmTime) / publishTimeout { // a partition that is full goes back after each
			w.ledger.lost(f.lasts)
		}
		w.ledger.confirmsNot(f.lasts)
	}
	silent := w.silent(f)
	w.ledger.mu.Lock()
	w.ledger.silent = silent
	w.ledger.mu.Unlock()
	w.broker.Withhold(silent, f.takes())
	time.Sleep(f.lasts * 3 / 4)
	if f.loses() == consumers { // where it lasts long, messages are held then
		w.lose(consumers)
	}
	time.Sleep(f.lasts / 4)
	switch {
	case f.loses() == everything, f.loses() == publishers:
		w.lose(f.loses())
	case f.lasts > publishTimeout-confirmTime:
		w.ledger.disturbed(copiedAgain)
	}
	w.broker.Release()
}

// lose ends the connections of all processes whose names begin so.
func (w *world) lose(name string) {
	w.ledger.lost(0)
	for number := range w.processes {
		if p := w.running(number); name == publishers {
			p.unsentAt.Store(time.Now().UnixNano())
		} else {
			p.lostAt.Store(time.Now().UnixNano())
		}
	}
	for number, is := range w.broker.Connections() {
		if strings.HasPrefix(is, name) {
			w.broker.Disturb(number, model.Reset)
		}
	}
}

// silence returns the fault of a plan where confirms are withheld, if there is one, and no fault of tiers.
func (p plan) silence() (only fault, is bool) {
	for _, f := range p.faults {
		if f.kind == withheld {
			only, is = f, !is
		}
	}
	return only, is && p.shape != builder && !p.mayHave(full, nackAt, noTier)
}

// copiedAgain checks the copy of a message that was held for one that may have arrived: "the next longer tier, after a
// minute at the earliest".
func (l *ledger) copiedAgain(m *letter, held *flight, e retry.Event) {
	f, only := l.plan.silence()
	alone := len(l.plan.faults) == 1 && f.loses() == none
	if !only || !held.silent || !copies(e.Outcome) || l.plan.breaker || m.at(held.state).calls > 1 ||
		!alone && !l.quiet(held.ended) {
		return
	}
	if since := time.Since(held.ended); since < copiedAgain-confirmTime {
		l.violate(m.id, "%s is %s %v after a copy that may have arrived", m.id, e.Outcome, since)
	}
	if f.one() && len(l.plan.schedule) > 1 && l.silent.MatchString(e.Destination) {
		l.violate(m.id, "%s waits for %s, which does not confirm", m.id, e.Destination)
	}
}

// awaits reports whether a call has ended and its outcome is not known, or whether that may be.
func (p plan) awaits(m *letter) bool {
	return p.hops(m.id) || slices.ContainsFunc(m.flights, func(f *flight) bool {
		return f.called && !f.process.dead.Load() && !f.ended.IsZero() && f.settled.IsZero()
	})
}

// doubled reports whether there are two messages in place of one, or may be: an event does not say which it is about.
func (l *ledger) doubled(m *letter, s state) bool {
	return l.plan.copies() > 1 && (l.plan.hops(m.id) || m.at(s).calls > 1)
}

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
