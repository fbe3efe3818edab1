package conformance

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// try is one call of a handler.
type try struct {
	id       string
	failures int // before this call
	at       time.Time
	record   retry.Record // not of a process of its own
}

// ledger contains the tries of each message, by the message's id.
type ledger struct {
	mu    sync.Mutex
	tries map[string][]try
}

func newLedger() *ledger { return &ledger{tries: map[string][]try{}} }

func (l *ledger) add(msg *message.Message) try {
	record, _ := retry.ReadRecord(msg.Metadata)
	one := try{id: msg.UUID, failures: record.Failures, at: time.Now(), record: record}
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
