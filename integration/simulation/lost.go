package simulation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/retry"
)

// unbound is how long the bindings of a work queue may be away that another client has removed.
const unbound = 4 * time.Second

// checkEnd looks at the end where every message is.
func (w *world) checkEnd() {
	for _, queue := range w.plan.queues() {
		w.checkQueue(queue)
	}
}

func (w *world) checkQueue(queue string) {
	l := w.ledger
	dead := w.checkLetters(queue)
	invoices := map[string]int{}
	for _, m := range w.broker.Messages(produced) {
		invoices[string(m.Body)]++
		for key := range m.Headers {
			if key == "retry_record" || slices.Contains(retry.RecordKeys(), key) {
				l.violated(string(m.Body), "what %s produced has the header %s", m.Body, key)
			}
		}
	}
	left, orphanedAt := map[string]string{}, map[string]time.Time{}
	for _, name := range w.broker.Queues() {
		if name == queue || strings.HasPrefix(name, queue+".") && !strings.HasSuffix(name, ".dead") ||
			strings.HasPrefix(name, "shared.") {
			for _, m := range w.broker.Messages(name) {
				left[string(m.Body)] = name
			}
		}
	}
	for _, m := range w.broker.Messages(orphans) {
		if deaths, _ := m.Headers["x-death"].([]any); len(deaths) > 0 && strings.HasSuffix(m.RoutingKey, queue) {
			left[string(m.Body)] = orphans
			orphanedAt[string(m.Body)], _ = deaths[0].(amqp091.Table)["time"].(time.Time)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.ids {
		m, dies := l.letters[queue+id], l.plan.dies(id)
		switch {
		case m.key == "": // not every queue has got it
		case left[id] != "" && left[id] != orphans:
			l.violate(id, "%s is still in %s after %d calls", id, left[id], m.calls)
		case left[id] != "" && (dead[id] > 0 || m.finished && !dies): // a duplicate
		case left[id] != "" && !l.mayBeOrphan(orphanedAt[id]):
			l.violate(id, "%s is an orphan, since %v", id, orphanedAt[id].Sub(l.began))
		case left[id] != "":
		case dies && dead[id] == 0:
			l.violate(id, "%s is lost: it must be a dead letter, and is none", id)
		case dies:
		case dead[id] > 0 && l.mayDie(m):
		case dead[id] > 0:
			l.violate(id, "%s is a dead letter, and must succeed", id)
		case m.succeeded+m.discarded == 0:
			l.violate(id, "%s is lost: it was called %d times, and did not succeed", id, m.calls)
		case m.succeeded > 0 && l.plan.produces && invoices[id] == 0:
			l.violate(id, "%s has succeeded, and what it produced is lost", id)
		}
	}
}

const (
	orphans       = "retry.orphans"
	longestReason = 1 << 10
)

// mayDie reports whether a message can become a dead letter that must not be one: what it produced cannot be published,
// no tier takes its copy, or its call hangs. docs/order.md has: "After nine tenths of the timeout its context ends, the
// partition moves on, and the call counts as a failure when the message comes again."
func (l *ledger) mayDie(m *letter) bool {
	outlived := m != nil && m.outlasted && l.plan.shape == keepsOrder
	return outlived || l.plan.produces || l.plan.breaker || l.plan.mayHave(nackAt, full, noTier, noExchange)
}

// mayBeOrphan reports whether the bindings were away at that time, in whole seconds, or a moment before: a message that
// comes back while nothing is bound is an orphan.
func (l *ledger) mayBeOrphan(at time.Time) bool {
	for _, f := range l.plan.faults {
		since := at.Sub(l.began.Add(f.at))
		switch f.kind {
		case unbind, replace, noWork, noReturn:
			if since > -2*time.Second && since < unbound {
				return true
			}
		}
	}
	return false
}

// checkLetters checks the records of dead letters, and returns how many there are of each message.
func (w *world) checkLetters(queue string) map[string]int {
	l := w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	dead := map[string]int{}
	for _, m := range w.broker.Messages(queue + ".dead") {
		id := string(m.Body)
		dead[id]++
		metadata := map[string]string{}
		for key, value := range m.Headers {
			metadata[key] = fmt.Sprint(value)
		}
		record, has := retry.ReadRecord(metadata)
		f, reason := l.plan.fate(id), string(record.DeadReason)
		want, failures := "exhausted", len(l.plan.schedule)+1
		switch f.how {
		case permanent:
			want, failures = "permanent", 1
		case invalid:
			want, failures = deadReason, 1
		}
		switch count, _ := m.Headers["count"].(int64); {
		case m.Headers[uuidHeader] != id || m.Headers["key"] == nil || fmt.Sprintf("%03d", count) != id:
			l.violate(id, "the dead letter %s is not as it was: %v", id, m.Headers)
		case !has:
			l.violate(id, "the dead letter %s has no record: %v", id, m.Headers)
		case record.Handler != handlerOf(queue) || record.Topic != topic || record.Reason == "" ||
			len(record.Reason) > longestReason || record.LastFailedAt.IsZero():
			l.violate(id, "the record of the dead letter %s is not whole: %v", id, record)
		case l.mayDie(l.letters[queue+id]) && reason != want:
		case reason != want || record.Failures != failures:
			l.violate(id, "the dead letter %s is %s after %d failures, and must be %s after %d", id, reason, record.Failures,
				want, failures)
		}
	}
	return dead
}
