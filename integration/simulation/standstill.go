package simulation

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/retry"
)

const (
	// standstill is the longest time without a call while a message is due, the broker answers, and nothing is paused.
	standstill = 10 * time.Second
	// notices is how long a half-open connection is not noticed: three heartbeats of ten seconds.
	notices = 35 * time.Second
)

// watch looks once a second for a handler that stands still.
func (w *world) watch(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	idle, unready, reported := map[string]time.Time{}, map[string]time.Time{}, map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.bounded()
		w.known()
		w.overdue()
		for _, queue := range w.plan.queues() {
			there, limited := w.inWork(queue), w.limitedKeys(queue)
			w.late(queue, there, limited)
			w.tenantsGoOn(queue, limited)
			waits := w.waits(queue, there, limited)
			if waits != nil && !w.allReady(queue) {
				unready[queue] = time.Now()
			}
			calm := w.ledger.excused()
			w.ledger.mu.Lock()
			stands := time.Since(latest(idle[queue], w.ledger.lastCall[queue]))
			switch {
			case waits == nil:
				idle[queue], reported[queue] = time.Now(), false
			case stands > standstill && time.Since(calm) > standstill:
				w.ledger.violate(waits.id, "%s has no call for %v while %s is due", queue, stands, waits.id)
				idle[queue] = time.Now()
			case min(stands, time.Since(unready[queue])) > w.plan.unnoticed() && !reported[queue]:
				reported[queue] = true
				w.ledger.violate(waits.id, "Health is ready, and %s has no call for %v while %s is due", queue, stands,
					waits.id)
			}
			w.ledger.mu.Unlock()
		}
	}
}

// late checks that none of the messages that are in a work queue waits for longer than its handler is busy.
func (w *world) late(queue string, there, limited map[string]bool) {
	calm, byKey := w.ledger.excused(), w.plan.tenants != nil
	if w.plan.shape == keepsOrder || w.plan.breaker && !byKey || time.Since(calm) < standstill {
		return
	}
	limits := byKey && w.limitsHandler(queue)
	l, most := w.ledger, standstill+w.plan.backlog()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.ids {
		m := l.letters[queue+id]
		if !there[id] || m.inCall > 0 || limits || limited[m.key] {
			m.seen = time.Now()
			continue
		}
		if since := time.Since(latest(m.due, m.seen, calm)); !m.finished && !m.late && since > most {
			m.late = true
			l.violate(id, "%s has no call for %v", id, since)
		}
	}
}

// overdue checks that no message stays on a tier when its delay is over: what no work queue gets is an orphan. Without
// the exchange of a tier the broker tries again after minutes.
func (w *world) overdue() {
	if time.Now().Second()%5 > 0 || w.plan.mayHave(noReturn, noExchange) || time.Since(w.ledger.excused()) < standstill {
		return
	}
	for _, name := range w.broker.Queues() {
		if !strings.Contains(name, ".retry.") {
			continue
		}
		for _, m := range w.broker.Messages(name) {
			if since := time.Since(m.Expires); !m.Expires.IsZero() && since > standstill {
				w.ledger.violated(string(m.Body), "%s is on %s, %v after its delay", m.Body, name, since)
			}
		}
	}
}

// backlog is how long a handler takes for everything that can wait for it. A message that a rule gives back keeps its
// place for a while.
func (p plan) backlog() time.Duration {
	takes := p.takes
	if p.tenants != nil {
		takes = max(takes, tenantHangs)
	}
	all := time.Duration(p.messages*(len(p.schedule)+2)) * (takes + p.confirms)
	for _, f := range p.fates {
		if f.how == returns {
			all += givenBack
		}
	}
	return all / time.Duration(p.concurrency)
}

// unnoticed is how long Health may be ready while a handler stands still.
func (p plan) unnoticed() time.Duration {
	switch {
	case p.mayHave(hangs, withheld) && p.shape == keepsOrder: // the partition of the call waits for it
		return rest
	case p.mayHave(halfOpen, frozen):
		return notices + standstill
	}
	return standstill
}

// waits returns one of the messages that are in a work queue that is not called, though its call is due. Nil: none.
func (w *world) waits(queue string, there, limited map[string]bool) *letter {
	l := w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(there) == 0 {
		return nil
	}
	called := func(other *letter) bool { return other.inCall > 0 }
	for _, id := range l.ids {
		m := l.letters[queue+id]
		if !there[id] || m.finished || limited[m.key] || time.Since(m.due) <= time.Second {
			continue
		}
		if busy := m.inCall > 0 || w.plan.mayHave(withheld) && w.plan.awaits(m) ||
			w.plan.shape == keepsOrder && slices.ContainsFunc(l.byKey[queue+m.key], called); !busy {
			return m
		}
	}
	return nil
}

// inWork returns the messages of a work queue and its partitions.
func (w *world) inWork(queue string) map[string]bool {
	there := map[string]bool{}
	for _, name := range w.broker.Queues() {
		if name == queue || strings.HasPrefix(name, queue+".order.") {
			for _, m := range w.broker.Messages(name) {
				there[string(m.Body)] = true
			}
		}
	}
	return there
}

// allReady reports whether a handler takes messages by the Health of all processes.
func (w *world) allReady(queue string) bool {
	for number := range w.processes {
		p := w.running(number)
		if p.connection == nil || p.ending.Load() {
			return false
		}
		health := p.connection.Health()
		if health.Ready() != nil || slices.ContainsFunc(health.Links, func(l retry.LinkHealth) bool { return l.Blocked }) {
			return false
		}
		of := func(s retry.SubscriptionHealth) bool {
			return s.Queue == queue && len(s.Paused) == 0 && s.Holding == 0 && s.Calls < s.Concurrency && s.InFlight < s.Prefetch
		}
		if !slices.ContainsFunc(health.Subscriptions, of) {
			return false
		}
	}
	return true
}
