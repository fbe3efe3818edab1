package simulation

import (
	"time"

	"github.com/tieredretry/watermill-retry/retry"
)

// tick is how early a message may be: the clock of the broker has whole milliseconds.
const tick = time.Millisecond

// sent notes when a message may come next, after a call.
func (l *ledger) sent(m *letter, record retry.Record, err error, lost bool) {
	next, delay := state{record.Failures + 1, record.Snoozes}, time.Duration(0)
	if record.Failures < len(l.plan.schedule) {
		delay = l.plan.schedule[record.Failures]
	}
	probe := state{record.Failures, record.Snoozes + 1} // of the breaker
	switch {
	case lost && l.plan.shape != builder && !l.plan.mayHave(hangs): // the broker delivers it again as it was
		m.due = time.Now()
		return
	case err == errBusy:
		next.failures, next.snoozes, delay = record.Failures, record.Snoozes+1, snooze
	case err == errNotHere:
		next.failures = record.Failures
		m.due = time.Now().Add(givenBack)
		return
	case err == nil && !l.plan.produces: // what cannot be published is a failure, too
		return
	case err == errAsks:
		delay = tenantAsks
	case err != nil && err != errDown && l.plan.fate(m.id).how == requests:
		delay = l.plan.requested(m.id)
	}
	m.due = time.Now().Add(delay)
	if !l.last(m, record, err) { // else it comes again as at the first time, from the dead letters
		m.may(next, delay)
	}
	if l.plan.breaker {
		m.may(probe, min(delay, l.plan.shortest()))
	}
}

// outlasts notes a call that lasts longer than the consumer timeout: the library can count it as a failure before it
// ends.
func (l *ledger) outlasts(queue, id string, record retry.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.plan.shape == keepsOrder || l.plan.concurrency == 1 { // others wait for it
		l.disturbed(hangsFor + time.Minute)
	}
	if m := l.letters[queue+id]; m != nil {
		m.outlasted = true
		// "the call counts as a failure when the message comes again", unless a rule gives the message back
		if l.plan.only(hangs) && l.plan.fate(id).how != returns {
			m.furthest = max(m.furthest, record.Failures+record.Snoozes+1)
		}
		m.may(state{record.Failures + 1, record.Snoozes}, 0)
		m.may(state{record.Failures, record.Snoozes + 1}, 0)
	}
}

func (m *letter) may(come state, after time.Duration) {
	v, due := m.at(come), time.Now().Add(after)
	if v.due.IsZero() || due.Before(v.due) {
		v.due = due
	}
}

func (p plan) shortest() time.Duration {
	shortest := p.schedule[0]
	for _, each := range p.schedule {
		shortest = min(shortest, each)
	}
	return shortest
}

// inTime checks that a message comes not early, and only after failures that have happened.
func (l *ledger) inTime(m *letter, v *visit, record retry.Record) {
	early := time.Until(v.due) - tick
	switch {
	case v.due.IsZero():
		l.violate(m.id, "%s has %d failures and %d snoozes that did not happen", m.id, record.Failures, record.Snoozes)
	case early > 0:
		l.violate(m.id, "%s is early by %v after failure %d", m.id, early, record.Failures)
	}
}
