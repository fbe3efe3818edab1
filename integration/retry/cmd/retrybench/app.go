package main

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	idDigits = 12
	idFormat = "00000000-0000-4000-8000-%0*d"
	dieEvery = 100 // of this many messages of a storm, one fails until it is dead-lettered
	tries    = 3   // deliveries of a message that is dead-lettered
)

var errMeasured = errors.New("measured")

// An app is the handler that all sides run. It counts the calls of each message by its identity.
type app struct {
	fails bool          // the storm: each message fails once, and one of dieEvery until it is dead-lettered
	few   bool          // one of dieEvery messages fails once, and the rate is that of the first calls
	work  time.Duration // how long a call takes

	profile func() error // called when the measurement begins; optional

	gate  chan struct{} // closed when the measurement begins: every side consumes by then
	calls []atomic.Int32
	first atomic.Int64  // messages that were not called
	left  atomic.Int64  // messages that are not finished
	total atomic.Int64  // calls
	extra atomic.Int64  // calls for messages that are finished
	done  chan struct{} // closed when no message is left
	seen  time.Time     // when each message was called once; set before done is closed
	end   time.Time     // set before done is closed
	fault chan error    // of a side; has room for one
}

func newApp(messages int, fails bool, work time.Duration) *app {
	a := &app{
		fails: fails, work: work, gate: make(chan struct{}), calls: make([]atomic.Int32, messages),
		done: make(chan struct{}), fault: make(chan error, 1),
	}
	a.first.Store(int64(messages))
	a.left.Store(int64(messages))
	return a
}

// withFew makes one of dieEvery messages fail once.
func (a *app) withFew() *app {
	a.few = true
	return a
}

func idOf(message int) string { return fmt.Sprintf(idFormat, idDigits, message) }

func (a *app) messageOf(id string) (int, error) {
	message, err := strconv.Atoi(id[max(len(id)-idDigits, 0):])
	if err != nil || message < 0 || message >= len(a.calls) {
		return 0, fmt.Errorf("a message with the foreign id %q was delivered", id)
	}
	return message, nil
}

// dies reports whether a message is dead-lettered in the end.
func (a *app) dies(message int) bool { return a.fails && message%dieEvery == 0 }

// deliveries is how many calls finish all messages.
func (a *app) deliveries() int {
	if !a.fails {
		return len(a.calls)
	}
	dead := (len(a.calls) + dieEvery - 1) / dieEvery
	return 2*len(a.calls) + (tries-2)*dead
}

// handle is called for each delivery. An error means that the message has to be retried, or dead-lettered after its last try.
func (a *app) handle(id string) error {
	<-a.gate
	message, err := a.messageOf(id)
	if err != nil {
		a.report(err)
		return nil
	}
	if a.work > 0 {
		time.Sleep(a.work)
	}
	a.total.Add(1)
	call, last := int(a.calls[message].Add(1)), 1
	if call == 1 && a.first.Add(-1) == 0 {
		a.seen = time.Now()
	}
	switch {
	case a.dies(message):
		last = tries
	case a.fails, a.few && message%dieEvery == 0:
		last = 2
	}
	switch {
	case call > last:
		a.extra.Add(1)
	case call == last:
		if a.left.Add(-1) == 0 {
			a.end = time.Now()
			close(a.done)
		}
	}
	if call < last || a.dies(message) {
		return errMeasured
	}
	return nil
}

// report ends the measurement with an error.
func (a *app) report(err error) {
	select {
	case a.fault <- err:
	default:
	}
}

// run opens the gate and returns the time until the last message is finished, or, with few failures, until each was called once.
// Without a call for patience, messages are lost.
func (a *app) run(patience time.Duration) (time.Duration, error) {
	if a.profile != nil {
		if err := a.profile(); err != nil {
			return 0, err
		}
	}
	begin := time.Now()
	close(a.gate)
	check := time.NewTicker(patience)
	defer check.Stop()
	for total := int64(0); ; {
		select {
		case <-a.done:
			if a.few {
				return a.seen.Sub(begin), nil
			}
			return a.end.Sub(begin), nil
		case err := <-a.fault:
			return 0, err
		case <-check.C:
			now := a.total.Load()
			if now == total {
				return 0, fmt.Errorf("lost messages: %d of %d did not finish, and none was delivered within the last %v", a.left.Load(), len(a.calls), patience)
			}
			total = now
		}
	}
}
