package conformance

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/retry"
)

// try is one call of a handler.
type try struct {
	id       string
	failures int // before this call
	at       time.Time
	// These are not of a process of its own.
	record retry.Record
	msg    *message.Message
}

// ledger contains the tries of each message, by the message's id.
type ledger struct {
	mu    sync.Mutex
	tries map[string][]try
}

func newLedger() *ledger { return &ledger{tries: map[string][]try{}} }

func (l *ledger) add(msg *message.Message) try {
	record, _ := retry.ReadRecord(msg.Metadata)
	one := try{id: msg.UUID, failures: record.Failures, at: time.Now(), record: record, msg: msg.Copy()}
	l.put(one)
	return one
}

// failing is a handler that fails this often for each message, and never for the one named last.
func (l *ledger) failing(times int) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		if one := l.add(msg); one.failures < times && one.id != "last" {
			return errDown
		}
		return nil
	}
}

func (l *ledger) put(one try) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tries[one.id] = append(l.tries[one.id], one)
}

func (l *ledger) all() map[string][]try {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := maps.Clone(l.tries)
	for id, tries := range all {
		all[id] = slices.Clone(tries)
	}
	return all
}

// first returns the first try of each message after so many failures.
func (l *ledger) first(failures int) (first []try) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, tries := range l.tries {
		for _, one := range tries {
			if one.failures == failures {
				first = append(first, one)
				break
			}
		}
	}
	return first
}

// reached counts the messages that were tried after so many failures.
func (l *ledger) reached(failures int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, tries := range l.tries {
		for _, one := range tries {
			if one.failures >= failures {
				n++
				break
			}
		}
	}
	return n
}

func (l *ledger) duplicates() int {
	n := 0
	for _, tries := range l.all() {
		seen := map[int]bool{}
		for _, one := range tries {
			if seen[one.failures] {
				n++
			}
			seen[one.failures] = true
		}
	}
	return n
}

func (l *ledger) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.tries)
}

// of returns the tries of a message.
func (l *ledger) of(id string) []try { return l.all()[id] }

// handled returns the messages that were tried, sorted.
func (l *ledger) handled() []string { return slices.Sorted(maps.Keys(l.all())) }

// await waits until n messages were tried after so many failures.
func (l *ledger) await(t *testing.T, n, failures int) {
	t.Helper()
	wait.Until(t, func() bool { return l.reached(failures) >= n }, "%d messages come after %d failures", n, failures)
}

// monotonic is the clock by which the tests of one server compare.
var monotonic registry.Clock

// neverEarly checks that each retry came at least its delay after the failure before it, by the backend's clock.
func (l *ledger) neverEarly(t *testing.T, clock registry.Clock, schedule ...time.Duration) {
	t.Helper()
	count := 0
	for id, tries := range l.all() {
		failed := map[int]time.Time{}
		for _, one := range tries {
			if _, known := failed[one.failures]; !known {
				failed[one.failures] = one.at
			}
			before, known := failed[one.failures-1]
			if !known || one.failures > len(schedule) {
				continue
			}
			delay := schedule[one.failures-1]
			monotonic, wall := one.at.Sub(before), one.at.Round(0).Sub(before.Round(0))
			if early := clock.Early(delay, monotonic, wall); early > 0 {
				if count++; count <= 3 {
					t.Errorf("message %s, retry %d of %v, came %v too early: after %v by the monotonic clock, %v by the wall clock",
						id, one.failures, delay, early, monotonic, wall)
				}
			}
		}
	}
	assert.Zero(t, count, "retries were early")
}
