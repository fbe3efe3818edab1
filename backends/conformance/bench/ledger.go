package main

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	patience = 2 * time.Minute // without progress for so long, messages are lost
	// tick is how early a message may be: servers count in milliseconds.
	tick = time.Millisecond
)

// soonest is when a message comes back that fails after the time at which all are due.
const soonest = time.Millisecond

// A ledger counts what becomes of each message, by its identity. Times are in ns since 1970: the processes of a session
// are on the same machine.
type ledger struct {
	mu      sync.Mutex
	failed  []int64 // when the first call has failed; 0: none has
	due     []int64 // when the message may come back
	back    []int64 // when the call began that has succeeded; 0: none has
	first   int     // messages that have failed
	left    int     // messages that are not back
	calls   int
	twice   int // calls more than necessary
	foreign int
	done    chan struct{}
	copied  map[int64]bool // messages whose copies are stored, after the call that failed was reported; of the library
	stored  chan struct{}  // closed when all are
}

func newLedger(messages int) *ledger {
	return &ledger{
		failed: make([]int64, messages), due: make([]int64, messages), back: make([]int64, messages),
		left: messages, done: make(chan struct{}), copied: map[int64]bool{}, stored: make(chan struct{}),
	}
}

// copy notes that a copy of a message is stored. There can be several: a backend may deliver the message twice.
func (l *ledger) copy(message int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.copied[message] {
		return
	}
	l.copied[message] = true
	if len(l.copied) == len(l.back) {
		close(l.stored)
	}
}

// add adds a call. Calls of two processes are not in order.
func (l *ledger) add(c call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	i := c.Message
	switch {
	case i < 0 || i >= int64(len(l.back)) || c.Failures < 0 || c.Failures > 1:
		l.foreign++
	case c.Failures == 0 && l.failed[i] == 0:
		l.failed[i], l.due[i] = c.At, c.At+c.Delay
		l.first++
	case c.Failures == 0: // a duplicate: its copy may come back when the first one is due
		l.twice++
		if due := c.At + c.Delay; due < l.due[i] {
			l.failed[i], l.due[i] = c.At, due
		}
	case l.back[i] == 0:
		l.back[i] = c.At
		if l.left--; l.left == 0 {
			close(l.done)
		}
	default:
		l.twice++
	}
}

// wait waits until all messages are back, or until there is no progress. A session that ends meanwhile ends the wait.
func (l *ledger) wait(idle time.Duration, ended <-chan error) error {
	for calls := 0; ; {
		select {
		case <-l.done:
			return nil
		case err := <-ended:
			return fmt.Errorf("a process of the app has ended: %w", err)
		case <-time.After(idle + patience):
		}
		l.mu.Lock()
		progress := calls != l.calls
		calls = l.calls
		l.mu.Unlock()
		if !progress {
			return nil
		}
	}
}

// A result is what a session has shown.
type result struct {
	took                        time.Duration // until the last message was back
	late                        []time.Duration
	lost, early, twice, foreign int
	behind                      int // messages that failed when they were due already
	left                        int // what the server still stores for the library's retries
}

// result counts, when no process adds calls any more. The session began at the given time.
func (l *ledger) result(began time.Time) (*result, error) {
	r := &result{lost: l.left, twice: l.twice, foreign: l.foreign}
	for i, back := range l.back {
		if back == 0 {
			continue
		}
		r.took = max(r.took, time.Duration(back-began.UnixNano()))
		if l.due[i]-l.failed[i] <= int64(soonest) {
			r.behind++
		}
		late := time.Duration(back - l.due[i])
		if l.failed[i] == 0 || late < -tick {
			r.early++
		}
		r.late = append(r.late, late)
	}
	var faults []error
	for i, name := range []string{"lost", "early", "foreign"} {
		if count := []int{r.lost, r.early, r.foreign}[i]; count != 0 {
			faults = append(faults, fmt.Errorf("%s=%d of %d messages", name, count, len(l.back)))
		}
	}
	return r, errors.Join(faults...)
}
