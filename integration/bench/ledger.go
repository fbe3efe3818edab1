package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

const (
	idDigits = 12
	idFormat = "00000000-0000-4000-8000-%0*d"
)

func idOf(message int) string { return fmt.Sprintf(idFormat, idDigits, message) }

// A ledger counts what becomes of each message, by its identity: when it has failed, when it is back, when it is
// finished.
type ledger struct {
	*claims.Tally
	delay func(message int) time.Duration // how long a message has to wait after a failure
	calls func(message int) int           // after which it is finished

	began  time.Time
	failed []int64 // when a message has failed, in ns after began; 0 while it does not wait
	called []int32

	first, last time.Duration   // when the first and the last message was finished
	collect     bool            // late
	late        []time.Duration // the lateness of each return
}

// newLedger is for messages that come back once after a delay.
func newLedger(messages int, delay func(message int) time.Duration) *ledger {
	l := &ledger{
		Tally: claims.NewTally(messages), delay: delay, calls: func(int) int { return 1 },
		began:  time.Now().Add(-1), // so that 0 is the time of no failure
		failed: make([]int64, messages), called: make([]int32, messages),
	}
	for i := range messages { // the memory is in use from now on
		l.failed[i], l.called[i] = 0, 0
	}
	return l
}

func always(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

// numberOf returns the number of a message, or -1 if its identity is foreign.
func numberOf(id string) int {
	message, err := strconv.Atoi(id[max(len(id)-idDigits, 0):])
	if err != nil {
		return -1
	}
	return message
}

// message is the same for the messages of the ledger.
func (l *ledger) message(id string) int {
	message := numberOf(id)
	if message < 0 || message >= len(l.called) {
		l.Foreign++
		return -1
	}
	return message
}

// fails is called when a message begins to wait. It reports whether the message is one of the ledger's.
func (l *ledger) fails(id string) bool {
	l.Lock()
	defer l.Unlock()
	message := l.message(id)
	if message >= 0 {
		l.failed[message] = int64(time.Since(l.began))
	}
	return message >= 0
}

// call is called for each delivery. It reports whether the message has to fail now, and how long it then waits.
func (l *ledger) call(id string) (delay time.Duration, again bool) {
	l.Lock()
	defer l.Unlock()
	now := time.Since(l.began)
	message := l.message(id)
	if message < 0 {
		return 0, false
	}
	l.Calls++
	l.called[message]++
	delay = l.delay(message)
	if failed := time.Duration(l.failed[message]); failed > 0 {
		l.failed[message] = 0
		waited := now - failed
		if waited < broker.Least(delay) {
			l.Early++
		}
		if l.collect {
			l.late = append(l.late, waited-delay)
		}
	}
	switch calls := l.calls(message); {
	case int(l.called[message]) < calls:
		l.failed[message] = int64(time.Since(l.began))
		return delay, true
	case int(l.called[message]) > calls:
		l.Twice++
	default:
		if l.last = now; l.first == 0 {
			l.first = now
		}
		l.Finish()
	}
	return 0, false
}

// wait waits until all messages are finished. idle is how long none may be called at first, while all wait.
func (l *ledger) wait(idle time.Duration) error {
	err := errors.Join(l.Wait(idle, nil), l.Check())
	if l.Twice > 0 {
		fmt.Printf("%d deliveries more than necessary\n", l.Twice)
	}
	return err
}
