package simulation

import (
	"fmt"
	"slices"
	"time"
)

// stillness is how long a process is looked at, after everything has been handled.
const stillness = time.Minute

// atRest checks that a process keeps nothing of what was handled, and that nothing moves without a message.
func (w *world) atRest() {
	before := w.counted()
	time.Sleep(stillness)
	if time.Since(w.ledger.excused()) < 2*stillness { // a lost connection may not have been noticed
		return
	}
	if after := w.counted(); !w.plan.breaker && !slices.Equal(before, after) { // a breaker takes steps
		w.ledger.violated("", "what processes count changes without a message: %v, and then %v", before, after)
	}
	for number := range w.processes {
		p := w.running(number)
		if p.connection == nil {
			continue
		}
		w.small(number, p.connection, false)
		health := p.connection.Health()
		if err := health.Ready(); err != nil {
			w.ledger.violated("", "process %d is not ready at the end: %v", number, err)
		}
		for _, s := range health.Subscriptions {
			w.goesOn(p, s)
			if s.Calls+s.InFlight+s.Holding+s.OrderWaiting+len(s.Blocked) > 0 {
				w.ledger.violated("", "process %d keeps messages at the end: %+v", number, s)
			}
		}
	}
	w.forgets()
}

// counted has the counts of all processes: how often consumers and connections have begun again, and what they got.
func (w *world) counted() (all []string) {
	for number := range w.processes {
		p := w.running(number)
		if p.connection == nil {
			continue
		}
		health := p.connection.Health()
		for _, l := range health.Links {
			all = append(all, fmt.Sprintf("%d %s: %d", number, l.Name, l.Reconnects))
		}
		for _, s := range health.Subscriptions {
			all = append(all, fmt.Sprintf("%d %s: %d %d", number, s.Queue, s.Reconnects, s.Deliveries))
		}
	}
	return all
}
