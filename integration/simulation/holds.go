package simulation

import "time"

const (
	// pauses is how soon a handler takes no new messages, while half of its places are held.
	pauses = 100 * time.Millisecond
	// reports is how long after a call its outcome is known at the latest, where the broker answers: PublishTimeout, for
	// a copy that was written before an alarm.
	reports = 32 * time.Second
	// noted is how soon a connection knows that it is blocked, and how soon a message is held because of that.
	noted = time.Second
	// lastTry is how long the last try of a hold takes after MaxHold.
	lastTry = 10 * time.Second
)

// heldFor is how long a message is held at the most. Zero: for MaxHold, which is longer than a run.
func (p plan) heldFor() time.Duration {
	switch {
	case p.maxHold > 0 && p.mayHave(withheld):
		return p.maxHold + publishTimeout + lastTry
	case p.maxHold > 0:
		return p.maxHold + lastTry
	case len(p.faults) == 1 && p.faults[0].kind == withheld && p.faults[0].one() && len(p.schedule) > 1:
		return copiedAgain + lastTry // then another tier takes it
	}
	return 0
}

// holding notes that a message of a handler is held, or is not any more.
func (p *process) holding(queue string, change int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[queue] += change
	if 2*p.held[queue] < p.world.plan.concurrency {
		p.half[queue] = time.Time{}
	} else if p.half[queue].IsZero() {
		p.half[queue] = time.Now()
	}
}

// holds checks at the begin of a call that less than half of the places are held.
func (p *process) holds(queue, id string) {
	p.mu.Lock()
	held, since := p.held[queue], p.half[queue]
	p.mu.Unlock()
	if !since.IsZero() && time.Since(since) > pauses && !p.dead.Load() {
		p.world.ledger.violated(id, "process %d calls for %s of %s while %d messages are held, half of the places since %v",
			p.number, id, queue, held, since.Sub(p.world.ledger.began))
	}
}

// alarmedBefore reports whether a message that fails at this time is held because of an alarm.
func (l *ledger) alarmedBefore(at time.Time) bool {
	p := l.plan
	return p.shape != builder && !p.mayHave(slow, withheld) && !l.alarm.IsZero() && at.Sub(l.alarm) > noted &&
		l.quiet(l.alarm.Add(-standstill))
}

// soon is how long after a lost connection what depends on it is decided.
const soon = 5 * time.Second

// isGivenBack checks that the outcome of a call whose delivery is lost is known soon, and that of one that awaits the
// confirm of a lost connection.
func (w *world) isGivenBack(m *letter) {
	for _, f := range m.flights {
		if f.process == nil || !f.called || f.process.dead.Load() || f.ended.IsZero() || !f.settled.IsZero() || f.missed {
			continue
		}
		lost, unsent := time.Unix(0, f.process.lostAt.Load()), time.Unix(0, f.process.unsentAt.Load())
		_, only := w.plan.silence()
		if w.plan.unordered() && f.ended.Before(lost) && time.Since(lost) > soon {
			f.missed = true
			w.ledger.violate(m.id, "the outcome of %s is not known %v after its delivery was lost", m.id, time.Since(lost))
		} else if only && f.ended.Before(unsent) && time.Since(unsent) > 2*soon {
			f.missed = true
			w.ledger.violate(m.id, "%s is not published %v after the loss of the connection", m.id, time.Since(unsent))
		}
	}
}

// known checks that the outcome of each call is known soon, and that nothing is held for longer than MaxHold.
func (w *world) known() {
	if w.plan.mayHave(halfOpen, frozen) {
		return
	}
	l, most := w.ledger, w.plan.heldFor()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.letters {
		w.isGivenBack(m)
		for _, f := range m.flights {
			if f.process == nil || f.process.dead.Load() || f.ended.IsZero() || !f.settled.IsZero() || f.missed ||
				l.doubled(m, f.state) {
				continue
			}
			since := time.Since(f.ended)
			switch {
			case !f.held && since > reports:
				l.violate(m.id, "the outcome of %s is not known %v after its call", m.id, since)
			case !f.held && since > noted && f.alarmed && l.alarmedBefore(f.ended):
				l.violate(m.id, "%s is not held in an alarm, %v after its call", m.id, since)
			case f.held && most > 0 && since > most:
				l.violate(m.id, "%s is held for %v", m.id, since)
			default:
				continue
			}
			f.missed = true
		}
	}
}
