package simulation

import (
	"slices"

	"github.com/tieredretry/watermill-retry/retry"
)

// inOrder checks that those before a message with its key are finished when it is called.
func (l *ledger) inOrder(m *letter) {
	if l.plan.shape != keepsOrder && m.calls == 1 {
		l.inTurn(m)
	}
	if l.plan.shape != keepsOrder || m.key == "" {
		return
	}
	for _, before := range l.byKey[m.queue+m.key][:m.number] {
		if !before.finished {
			l.violate(m.id, "%s is called before the end of %s of the same key", m.id, before.id)
		}
	}
}

// inTurn checks that messages come in their order to the only handler of a queue where it takes one at a time, also
// through pauses. Where a key pauses, its messages wait on a tier.
func (l *ledger) inTurn(m *letter) {
	p := l.plan
	if p.tenants != nil || p.processes > 1 || p.concurrency > 1 || !p.only(pause, looks, redrive, purge) {
		return
	}
	for _, id := range l.ids[:slices.Index(l.ids, m.id)] {
		if before := l.letters[m.queue+id]; before.calls == 0 && before.key != "" && !before.purged {
			l.violate(m.id, "%s is called before %s, which was published before", m.id, id)
			return
		}
	}
}

// handsOver is why a process gives a partition back, and mostHandedOver how many all processes hand over
// until each has its share: one that gets a partition may have too many itself.
const handsOver, mostHandedOver = "another process has fewer partitions", 6

// givesWay checks that processes do not hand partitions over for ever, while nothing else takes them one.
func (l *ledger) givesWay(shares bool) {
	if n := l.handedOver.Add(1); !shares {
		l.handedOver.Store(0)
	} else if n > mostHandedOver && !l.plan.breaker { // the pauses of a breaker do
		l.violated("", "processes have handed over %d partitions, and nothing else has taken them one", n)
	}
}

// remembers checks that a process remembers how often a message has failed that goes back and comes again.
// docs/order.md has: "For one hour the process remembers how often these messages failed."
func (l *ledger) remembers(m *letter, record retry.Record) {
	if l.plan.shape != keepsOrder || l.plan.processes > 1 || m.redriven > 0 || l.ends(m) > 0 || l.plan.replaces() ||
		l.dead(m) > 0 { // what was moved twice comes again, also where the first one is a dead letter by a breaker
		return
	}
	now := record.Failures + record.Snoozes
	if now < m.furthest {
		l.violate(m.id, "%s is called after %d failures and snoozes, and was called after %d", m.id, now, m.furthest)
	}
	m.furthest = max(m.furthest, now)
}

// replaces reports whether a process or a handler ends, and another one goes on.
func (p plan) replaces() bool {
	return p.mayHave(kill, deploy, rolling, readd) || slices.ContainsFunc(p.faults, fault.deploys)
}
