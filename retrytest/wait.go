package retrytest

import (
	"cmp"
	"fmt"
	"time"
)

// waitForMessages returns when all messages are finished. It returns earlier, with the problem and its message, if a
// message cannot be finished or has no event for as long as the patience.
func (l *ledger) waitForMessages(patience time.Duration) (problem string, of *entry) {
	for {
		l.mu.Lock()
		next, until := l.nextExpected(patience)
		changed := l.changed
		switch {
		case next == nil:
		case next.problem != "":
			problem, of = next.problem, next.entry
		case !time.Now().Before(until):
			problem = fmt.Sprintf("nothing has happened to message %q for %s: %s", next.entry.msg.UUID,
				timeText(patience), next.waitsFor())
			of = next.entry
		}
		l.mu.Unlock()
		if next == nil || of != nil {
			return problem, of
		}
		changedWithin(time.Until(until), changed)
	}
}

// nextExpected returns the message whose next event has the earliest deadline, and the deadline. It returns a message
// with a problem first, and nil if all messages are finished.
func (l *ledger) nextExpected(patience time.Duration) (next *progress, until time.Time) {
	for _, e := range l.entries {
		for _, p := range e.groups {
			if p.problem != "" {
				return p, until
			}
			deadline := p.latest
			if p.queue.latest.After(deadline) { // it may wait behind others, or while its handler is paused
				deadline = p.queue.latest
			}
			if p.due.After(deadline) {
				deadline = p.due
			}
			deadline = deadline.Add(patience)
			if !p.finished() && (next == nil || deadline.Before(until)) {
				next, until = p, deadline
			}
		}
	}
	return next, until
}

// waitForHandlers waits until no handler runs and every message is settled. If that takes longer than the limit, it
// returns the name of a handler that runs.
func (l *ledger) waitForHandlers(limit time.Duration) (running string) {
	deadline := time.Now().Add(limit)
	for {
		l.mu.Lock()
		running, changed := "", l.changed
		for d := range l.open {
			if !d.abandoned {
				running = cmp.Or(d.Handler, d.progress.queue.topic)
			}
		}
		l.mu.Unlock()
		if running == "" || !changedWithin(time.Until(deadline), changed) {
			return running
		}
	}
}

// changedWithin waits for a change and reports whether it came within this time.
func changedWithin(d time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-changed:
		return true
	case <-timer.C:
		return false
	}
}
