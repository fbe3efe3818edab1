package simulation

import (
	"slices"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
)

// double checks that a call is repeated only where a fault allows it, and not too often.
func (l *ledger) double(m *letter, v *visit) {
	allowed := 1
	if l.plan.fate(m.id).how == returns {
		allowed++
	}
	again := v.calls > allowed
	if l.plan.shape == keepsOrder {
		again = l.ends(m)
	}
	if !again {
		return
	}
	l.repeated++
	if _, most := l.excused(); l.repeated > most {
		l.violate(m.id, "%s is called again, which no fault explains: %d calls were repeated, and %d may be", m.id,
			l.repeated, most)
	}
}

// ends reports whether an ordered message must not come again. docs/order.md has: "Another process calls the handler at
// once, and begins the schedule again at failure 1." So the last failure is not the end, but the dead letter is. Until
// that is published, the message is held, and goes back with its partition: "A message that is held after its call does
// not delay this."
func (l *ledger) ends(m *letter) bool {
	if m.succeeded+m.discarded > 0 {
		return true
	}
	is := func(dead model.Message) bool { return string(dead.Body) == m.id }
	return m.finished && !l.plan.breaker && // a probe that fails does not end its message
		slices.ContainsFunc(l.broker.Messages(m.queue+".dead"), is)
}

// inFlight is how many messages one loss of a connection can repeat.
func (p plan) inFlight() int {
	if p.shape == keepsOrder {
		return p.messages // 512 for each partition
	}
	return max(2*p.concurrency, 32) * len(p.queues())
}
