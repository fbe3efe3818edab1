package main

import (
	"fmt"
	"time"

	"github.com/tieredretry/watermill-retry/tools/claims"
)

// tick is how early a message may be: servers count in milliseconds.
const tick = time.Millisecond

// A ledger counts what becomes of each message, by its identity. Times are in ns since 1970: the app is on the same
// machine.
type ledger struct {
	*claims.Tally
	failed []int64 // when the first call has failed; 0: none has
	back   []int64 // when the call began that has succeeded; 0: none has
}

func newLedger(messages int) *ledger {
	return &ledger{
		Tally: claims.NewTally(messages), failed: make([]int64, messages), back: make([]int64, messages),
	}
}

// read adds a call, as a line of a worker has it.
func (l *ledger) read(line string) {
	var c call
	if _, err := fmt.Sscanf(line, callFormat, &c.message, &c.failures, &c.at); err != nil {
		c.message = -1
	}
	l.add(c)
}

func (l *ledger) add(c call) {
	l.Lock()
	defer l.Unlock()
	l.Calls++
	i := c.message
	switch {
	case i < 0 || i >= int64(len(l.back)) || c.failures < 0 || c.failures > 1:
		l.Foreign++
	case c.failures == 0 && l.failed[i] == 0:
		l.failed[i] = c.at
	case c.failures == 1 && l.back[i] == 0:
		l.back[i] = c.at
		l.Finish()
	default: // a duplicate
		l.Twice++
	}
}

// took returns the time until the last message was back, when no process adds calls any more.
func (l *ledger) took(began time.Time) (took time.Duration, err error) {
	l.Early = 0
	for i, back := range l.back {
		if back == 0 {
			continue
		}
		took = max(took, time.Duration(back-began.UnixNano()))
		if l.failed[i] == 0 || time.Duration(back-l.failed[i]) < tier-tick {
			l.Early++
		}
	}
	return took, l.Check()
}
