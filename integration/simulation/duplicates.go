package simulation

// double checks that a call is repeated only where a fault allows it, and not too often.
func (l *ledger) double(m *letter, v *visit) {
	allowed := 1
	if l.plan.fate(m.id).how == returns {
		allowed++
	}
	again := v.calls > allowed
	if l.plan.shape == keepsOrder { // a process that takes a partition over begins with the failures anew
		again = m.finished && (!l.plan.breaker || m.succeeded > 0) // a probe that fails does not end its message
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

// inFlight is how many messages one loss of a connection can repeat.
func (p plan) inFlight() int {
	if p.shape == keepsOrder {
		return p.messages // 512 for each partition
	}
	return max(2*p.concurrency, 32) * len(p.queues())
}
