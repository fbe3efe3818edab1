package main

import (
	"time"

	"github.com/tieredretry/watermill-retry/tools/claims"
)

// tick is how early a message may be: servers count in milliseconds.
const tick = time.Millisecond

// soonest is when a message comes back that fails after the time at which all are due.
const soonest = time.Millisecond

// A ledger counts what becomes of each message, by its identity. Times are in ns since 1970: the processes of a session
// are on the same machine.
type ledger struct {
	*claims.Tally
	failed []int64        // when the first call has failed; 0: none has
	due    []int64        // when the message may come back
	back   []int64        // when the call began that has succeeded; 0: none has
	copied map[int64]bool // messages whose copies are stored, after the call that failed was reported; of the library
	stored chan struct{}  // closed when all are
}

func newLedger(messages int) *ledger {
	return &ledger{
		Tally:  claims.NewTally(messages),
		failed: make([]int64, messages), due: make([]int64, messages), back: make([]int64, messages),
		copied: map[int64]bool{}, stored: make(chan struct{}),
	}
}

// copy notes that a copy of a message is stored. There can be several: a backend may deliver the message twice.
func (l *ledger) copy(message int64) {
	l.Lock()
	defer l.Unlock()
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
	l.Lock()
	defer l.Unlock()
	l.Calls++
	i := c.Message
	switch {
	case i < 0 || i >= int64(len(l.back)) || c.Failures < 0 || c.Failures > 1:
		l.Foreign++
	case c.Failures == 0 && l.failed[i] == 0:
		l.failed[i], l.due[i] = c.At, c.At+c.Delay
	case c.Failures == 0: // a duplicate: its copy may come back when the first one is due
		l.Twice++
		if due := c.At + c.Delay; due < l.due[i] {
			l.failed[i], l.due[i] = c.At, due
		}
	case l.back[i] == 0:
		l.back[i] = c.At
		l.Finish()
	default:
		l.Twice++
	}
}

// A result is what a session has shown.
type result struct {
	took   time.Duration // the time until the last message was back
	late   []time.Duration
	behind int // messages that failed when they were due already
	left   int // what the server still stores for the library's retries
}

// result counts, when no process adds calls any more. The session began at the given time.
func (l *ledger) result(began time.Time) (*result, error) {
	r := &result{}
	l.Early = 0
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
			l.Early++
		}
		r.late = append(r.late, late)
	}
	return r, l.Check()
}
