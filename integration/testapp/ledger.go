package testapp

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

// Ledger has when each message came, by identity.
type Ledger struct {
	mu     sync.Mutex
	calls  map[string][]time.Time
	change chan struct{}
}

func NewLedger() *Ledger {
	return &Ledger{calls: map[string][]time.Time{}, change: make(chan struct{}, 1)}
}

func (l *Ledger) Add(identity string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[identity] = append(l.calls[identity], time.Now())
	select {
	case l.change <- struct{}{}:
	default:
	}
	return len(l.calls[identity])
}

func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.calls)
}

// Wait returns when this number of identities has been counted.
func (l *Ledger) Wait(t testing.TB, identities int, within time.Duration) {
	t.Helper()
	patience := broker.NewPatience(within)
	defer patience.Check.Stop()
	for l.Len() < identities {
		select {
		case <-l.change:
		case <-patience.Check.C:
			require.Falsef(t, patience.Over(), "messages are missing, and nothing moves on the broker: %d of %d",
				l.Len(), identities)
		}
	}
}

// Twice returns the identities that came more than once.
func (l *Ledger) Twice() (all []string) {
	for identity, count := range l.Counts() {
		if count > 1 {
			all = append(all, fmt.Sprintf("%s: %d", identity, count))
		}
	}
	return all
}

// Counts returns how often each identity came.
func (l *Ledger) Counts() map[string]int {
	counts := map[string]int{}
	for identity, times := range l.Times() {
		counts[identity] = len(times)
	}
	return counts
}

// Times returns when each identity came.
func (l *Ledger) Times() map[string][]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.calls)
}

// Handle is a handler that counts messages by their UUID, and never fails.
func (l *Ledger) Handle(msg *message.Message) error {
	l.Add(msg.UUID)
	return nil
}

// HandleRetries is a handler that fails at the first try of each message, and counts the retries by UUID.
func (l *Ledger) HandleRetries(msg *message.Message) error {
	if Failures(msg) == 0 {
		return ErrDown
	}
	return l.Handle(msg)
}
