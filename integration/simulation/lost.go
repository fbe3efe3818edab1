package simulation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	apps "github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	// unbound is how long the bindings of a work queue may be away where the queue is gone.
	unbound = 4 * time.Second
	// looksAgain is how long they may be away where nothing shows it: docs/limits.md has "bound again within 30 s".
	looksAgain = 31 * time.Second
)

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
		case m.key == "" || m.purged: // not every queue has got it, or an operator does not want it
		case left[id] != "" && left[id] != orphans:
			l.violate(id, "%s is still in %s after %d calls", id, left[id], m.calls)
		case left[id] != "" && (dead[id] != "" || m.finished && !dies): // a duplicate
		case left[id] != "" && !l.mayBeOrphan(orphanedAt[id]):
			l.violate(id, "%s is an orphan, since %v", id, orphanedAt[id].Sub(l.began))
		case left[id] != "":
		case dies && dead[id] == "":
			l.violate(id, "%s is lost: it must be a dead letter, and is none", id)
		case dies:
		case dead[id] != "" && l.mayDie(id, m, dead[id]):
		case dead[id] != "":
			l.violate(id, "%s is a dead letter, %s, and must succeed", id, dead[id])
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

// mayDie reports whether a message can become a dead letter for this reason, though it must not be one: what it
// produced cannot be published, no tier takes its copy, or its call hangs. docs/order.md has: "After nine tenths of the
// timeout its context ends, the partition moves on, and the call counts as a failure when the message comes again."
// While a breaker is open, it is not known which try of a message is its last.
func (l *ledger) mayDie(id string, m *letter, reason retry.DeadReason) bool {
	p := l.plan
	switch {
	case m == nil:
		return false
	case reason == retry.DeadReasonNoTier:
		return p.mayHave(nackAt, full, withheld)
	case p.breaker && reason == p.reason(id), m.failedDown > 0 && reason == retry.DeadReasonExhausted:
		return true
	}
	fails := m.outlasted && p.shape == keepsOrder || p.produces && len(p.faults) > 0
	return fails && reason == retry.DeadReasonExhausted
}

// saysWhy reports whether the text of a dead letter is that of its last failure. A call that hangs has another one, and
// so has what cannot be published. What no tier takes may have been snoozed.
func (l *ledger) saysWhy(m *letter, text string) bool {
	want := failsText
	switch {
	case m == nil, m.outlasted, l.plan.produces, l.plan.breaker, l.plan.fate(m.id).how == snoozes:
		return true
	case l.plan.fate(m.id).how == invalid:
		want = errInvalid.Error()
	case l.plan.fate(m.id).how == goexits:
		want = apps.ErrGoexit.Error()
	}
	return strings.Contains(text, want)
}

// up returns when the node runs, from this time on.
func (p plan) up(at time.Duration) time.Duration {
	for _, f := range p.faults {
		if f.kind == restart && f.at <= at && at < f.at+f.lasts {
			return f.at + f.lasts
		}
	}
	return at
}

// mayBeOrphan reports whether the bindings were away at that time, in whole seconds, or a moment before: a message that
// comes back while nothing is bound is an orphan.
func (l *ledger) mayBeOrphan(at time.Time) bool {
	isIn := func(since, away time.Duration) bool { return away > 0 && since > -2*time.Second && since < away }
	l.faults.Lock()
	defer l.faults.Unlock()
	if slices.ContainsFunc(l.again, func(again time.Time) bool { return isIn(at.Sub(again), unbound) }) {
		return true
	}
	for _, f := range l.plan.faults {
		var away time.Duration
		begins := l.began.Add(f.at)
		switch {
		case f.kind == pause && f.whole(): // replaced while it is paused
			begins, away = begins.Add(f.lasts/2), f.lasts/2+unbound
		case f.kind == replace || f.kind == noWork:
			away = l.plan.up(f.at) - f.at + unbound
		case f.kind == unbind, f.kind == noReturn && f.whole():
			away = looksAgain
		}
		if isIn(at.Sub(begins), away) {
			return true
		}
	}
	return false
}

// checkLetters checks the records of dead letters, and returns why each message is one.
func (w *world) checkLetters(queue string) map[string]retry.DeadReason {
	l := w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	dead := map[string]retry.DeadReason{}
	for _, m := range w.broker.Messages(queue + ".dead") {
		id := string(m.Body)
		metadata := map[string]string{}
		for key, value := range m.Headers {
			metadata[key] = fmt.Sprint(value)
		}
		record, has := retry.ReadRecord(metadata)
		reason, want, failures := record.DeadReason, l.plan.reason(id), len(l.plan.schedule)+1
		if want != retry.DeadReasonExhausted {
			failures = 1
		}
		dead[id] = cmp.Or(reason, "unknown")
		switch count, _ := m.Headers["count"].(int64); {
		case m.Headers[uuidHeader] != id || m.Headers["key"] == nil || fmt.Sprintf("%03d", count) != id:
			l.violate(id, "the dead letter %s is not as it was: %v", id, m.Headers)
		case !has:
			l.violate(id, "the dead letter %s has no record: %v", id, m.Headers)
		case record.Handler != handlerOf(queue) || record.Topic != topic || record.Reason == "" ||
			len(record.Reason) > longestReason || record.LastFailedAt.IsZero():
			l.violate(id, "the record of the dead letter %s is not whole: %v", id, record)
		case !l.saysWhy(l.letters[queue+id], record.Reason):
			l.violate(id, "the reason of the dead letter %s is not that of its failure: %.80q", id, record.Reason)
		case l.mayDie(id, l.letters[queue+id], reason) && (reason != want || l.letters[queue+id].failedDown > 0):
		case reason != want || record.Failures != failures:
			l.violate(id, "the dead letter %s is %s after %d failures, and must be %s after %d", id, reason, record.Failures,
				want, failures)
		}
	}
	return dead
}
