package simulation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/retry"
)

const (
	// standstill is the longest time without a call while work is ready, the broker answers, and nothing is paused.
	standstill = 10 * time.Second
	// unbound is how long the bindings of a work queue may be away that another client has removed.
	unbound = 4 * time.Second
	// halfOpenFor is how long a half-open connection is not noticed: three heartbeats of ten seconds.
	halfOpenFor = 35 * time.Second
)

// letter is what is known of one message.
type letter struct {
	key       string
	number    int // in the order of its key
	failedAt  map[int]time.Time
	calls     int
	succeeded int
	finished  bool // handled, or given up
}

// ledger knows every message by its id.
type ledger struct {
	plan  plan
	began time.Time
	note  func(format string, args ...any)

	mu         sync.Mutex
	letters    map[string]*letter
	byKey      map[string][]string // in the order in which they were published
	lastCall   time.Time
	calm       time.Time // after this time no fault excuses anything
	violations []string
}

func newLedger(p plan) *ledger {
	return &ledger{plan: p, began: time.Now(), letters: map[string]*letter{}, byKey: map[string][]string{}}
}

// violated notes a violation. mu is held.
func (l *ledger) violated(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	l.violations = append(l.violations, text)
	l.note("VIOLATION: %s", text)
}

func (l *ledger) published(id, key string, publish func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if publish() {
		l.letters[id] = &letter{key: key, number: len(l.byKey[key]), failedAt: map[int]time.Time{}}
		l.byKey[key] = append(l.byKey[key], id)
	}
}

func (l *ledger) called(p *process, msg *message.Message, record retry.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.isDead() {
		return
	}
	id := string(msg.Payload)
	l.note("process %d: call for %s after %d failures", p.number, id, record.Failures)
	l.lastCall = time.Now()
	m := l.letters[id]
	switch {
	case m == nil:
		l.violated("a stranger: %q", id)
		return
	case msg.UUID != id || msg.Metadata.Get("key") != m.key:
		l.violated("%s is not as it was: UUID %q, key %q", id, msg.UUID, msg.Metadata.Get("key"))
	}
	m.calls++
	if n := record.Failures; n > 0 {
		failed, known := m.failedAt[n]
		early := failed.Add(l.plan.schedule[min(n, len(l.plan.schedule))-1]).Sub(msecond(time.Now()))
		switch {
		case !known && !l.plan.produces: // what cannot be published is a failure, too
			l.violated("%s has %d failures that did not happen", id, n)
		case known && early > time.Millisecond:
			l.violated("%s is early by %v after failure %d", id, early, n)
		}
	}
}

func msecond(at time.Time) time.Time { return at.Add(time.Millisecond) }

func (l *ledger) failed(p *process, id string, record retry.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	if m == nil || p.isDead() {
		return
	}
	if _, known := m.failedAt[record.Failures+1]; !known {
		m.failedAt[record.Failures+1] = time.Now()
	}
	if record.Failures == len(l.plan.schedule) {
		l.finish(m, id)
	}
}

func (l *ledger) succeeded(p *process, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.letters[id]
	if m == nil || p.isDead() {
		return
	}
	m.succeeded++
	l.finish(m, id)
}

// finish checks the order: those before it with its key are finished.
func (l *ledger) finish(m *letter, id string) {
	m.finished = true
	if l.plan.partitions == 0 {
		return
	}
	for _, before := range l.byKey[m.key][:m.number] {
		if !l.letters[before].finished {
			l.violated("%s is finished before %s of the same key", id, before)
		}
	}
}

// disturbed notes that a fault begins, or ends, that lasts so long.
func (w *world) disturbed(lasts time.Duration) {
	l := w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := time.Now().Add(lasts); until.After(l.calm) {
		l.calm = until
	}
}

// watch looks for a handler that stands still, once a second.
func (w *world) watch(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	l := w.ledger
	var idle time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ready := 0
		for _, name := range w.broker.Queues() {
			if name == topic || strings.HasPrefix(name, topic+".order.") {
				for _, m := range w.broker.Messages(name) {
					if !m.Unacknowledged {
						ready++
					}
				}
			}
		}
		l.mu.Lock()
		since := latest(idle, l.lastCall, l.calm)
		switch {
		case ready == 0:
			idle = time.Now()
		case time.Since(since) > standstill:
			l.violated("no call for %v while %d messages are ready", time.Since(since), ready)
			idle = time.Now()
		}
		l.mu.Unlock()
	}
}

func latest(times ...time.Time) (last time.Time) {
	for _, at := range times {
		if at.After(last) {
			last = at
		}
	}
	return last
}

// check looks at the end where every message is.
func (l *ledger) check(w *world) {
	dead := map[string]int{}
	for _, m := range w.broker.Messages(topic + ".dead") {
		dead[string(m.Body)]++
		record := text(m.Headers["retry_record"])
		if record == "" && m.Headers["retry_failures"] == nil {
			l.violations = append(l.violations, fmt.Sprintf("dead letter %s has no record", m.Body))
		}
	}
	invoices := map[string]int{}
	for _, m := range w.broker.Messages(produced) {
		invoices[string(m.Body)]++
	}
	left, orphanedAt := map[string]string{}, map[string]time.Time{}
	for _, name := range w.broker.Queues() {
		if name == topic+".dead" || name == produced {
			continue
		}
		for _, m := range w.broker.Messages(name) {
			left[string(m.Body)] = name
			if deaths, _ := m.Headers["x-death"].([]any); len(deaths) > 0 {
				orphanedAt[string(m.Body)], _ = deaths[0].(amqp091.Table)["time"].(time.Time)
			}
		}
	}
	// A produced message that cannot be published is a failure, and a copy that no tier takes is a dead letter.
	mayDie := l.plan.produces || slices.ContainsFunc(l.plan.faults, func(f fault) bool {
		return f.kind == nackAt || f.kind == full
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, m := range l.letters {
		exhausted := l.plan.failures(id) > len(l.plan.schedule)
		switch {
		case left[id] != "" && left[id] != "retry.orphans":
			l.violated("%s is still in %s after %d calls", id, left[id], m.calls)
		case left[id] != "" && (dead[id] > 0 || m.succeeded > 0): // a duplicate
		case left[id] != "" && !l.mayBeOrphan(orphanedAt[id]):
			l.violated("%s is an orphan, since %v", id, orphanedAt[id].Sub(l.began))
		case left[id] != "":
		case exhausted && dead[id] == 0:
			l.violated("%s is lost: it must be a dead letter, and is none", id)
		case !exhausted && dead[id] > 0 && mayDie:
		case !exhausted && m.succeeded == 0:
			l.violated("%s is lost: it was called %d times, and did not succeed", id, m.calls)
		case !exhausted && dead[id] > 0:
			l.violated("%s is a dead letter, and must succeed", id)
		case m.succeeded > 0 && l.plan.produces && invoices[id] == 0 && dead[id] == 0:
			l.violated("%s has succeeded, and what it produced is lost", id)
		}
	}
}

// mayBeOrphan reports whether the bindings were away at that time, in whole seconds, or a moment before: a message that
// comes back while nothing is bound is an orphan.
func (l *ledger) mayBeOrphan(at time.Time) bool {
	for _, f := range l.plan.faults {
		since := at.Sub(l.began.Add(f.at))
		switch f.kind {
		case unbind, replace, noReturn:
			if since > -2*time.Second && since < unbound {
				return true
			}
		}
	}
	return false
}

func text(value any) string {
	s, _ := value.(string)
	return s
}
