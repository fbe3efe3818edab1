package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

const (
	idDigits = 12
	idFormat = "00000000-0000-4000-8000-%0*d"
)

func idOf(message int) string { return fmt.Sprintf(idFormat, idDigits, message) }

func messageOf(id string) (int, error) {
	message, err := strconv.Atoi(id[max(len(id)-idDigits, 0):])
	if err != nil {
		return 0, fmt.Errorf("a message with the foreign id %q was delivered", id)
	}
	return message, nil
}

// A ledger counts each message that waits, by its identity.
type ledger struct {
	begin    time.Time
	due      []atomic.Int64 // when a message may come back at the earliest, in ns after begin
	returned []atomic.Int32
	left     atomic.Int64
	early    atomic.Int64
	twice    atomic.Int64
	foreign  atomic.Int64
	done     chan struct{}
	finish   sync.Once
	last     atomic.Int64 // when a message came back last, in ns after begin
}

func newLedger(messages int) *ledger {
	l := &ledger{begin: time.Now(), due: make([]atomic.Int64, messages), returned: make([]atomic.Int32, messages), done: make(chan struct{})}
	l.left.Store(int64(messages))
	for i := range messages { // the memory is in use from now on
		l.due[i].Store(math.MaxInt64) // it does not wait
		l.returned[i].Store(0)
	}
	return l
}

// waits is called before a message is published to a tier.
func (l *ledger) waits(message int, delay time.Duration) {
	l.due[message].Store(int64(time.Since(l.begin) + broker.Least(delay)))
}

// comesBack is called when a message is delivered after its delay.
func (l *ledger) comesBack(id string) {
	at := int64(time.Since(l.begin))
	message, err := messageOf(id)
	if err != nil || message < 0 || message >= len(l.due) {
		l.foreign.Add(1)
		return
	}
	if at < l.due[message].Load() {
		l.early.Add(1)
	}
	if l.returned[message].Add(1) > 1 {
		l.twice.Add(1)
		return
	}
	l.last.Store(at)
	if l.left.Add(-1) == 0 {
		l.finish.Do(func() { close(l.done) })
	}
}

// back is how many messages have come back.
func (l *ledger) back() int { return len(l.due) - int(l.left.Load()) }

// wait waits until all have come back. idle is how long none may come at first, while all wait on their tiers.
func (l *ledger) wait(idle time.Duration) error {
	timeout := time.NewTimer(idle + patience)
	defer timeout.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for left := int64(len(l.due)); ; {
		select {
		case <-l.done:
			return l.check()
		case <-tick.C:
			if now := l.left.Load(); now != left {
				left = now
				timeout.Reset(patience)
			}
		case <-timeout.C:
			return fmt.Errorf("lost=%d of %d messages: none was delivered within %v", l.left.Load(), len(l.due), patience)
		}
	}
}

// check reports what must never happen. A duplicate is preferred to a loss, and only counted.
func (l *ledger) check() error {
	var faults []error
	for _, fault := range []struct {
		name  string
		count int64
	}{{"lost", l.left.Load()}, {"early", l.early.Load()}, {"foreign", l.foreign.Load()}} {
		if fault.count != 0 {
			faults = append(faults, fmt.Errorf("%s=%d of %d messages", fault.name, fault.count, len(l.due)))
		}
	}
	return errors.Join(faults...)
}
