package wire

import (
	"time"

	"github.com/tieredretry/watermill-retry/internal/pauses"
)

// The defaults of Backoff's bounds.
const (
	ReconnectInitial = 100 * time.Millisecond
	ReconnectMax     = 5 * time.Second
)

// AfterDeletion is the bound of the pause before a deleted queue is declared again. The clients that delete it may
// still be deleting. A quorum queue that one client deletes while another one declares it can stop the dead-letter
// supervisor of a node of RabbitMQ 3.10 or 4.0. The node then starts no quorum queue with at-least-once dead-lettering
// until it is restarted.
const AfterDeletion = 2 * time.Second

// A Backoff is the pause between attempts. It doubles from Initial up to Max.
type Backoff struct {
	Initial, Max time.Duration
	next         time.Duration
}

// Next returns the next pause, shortened at random by up to a half, so that instances do not reconnect all at once.
func (b *Backoff) Next() time.Duration {
	pause := max(b.next, b.Initial)
	b.next = min(2*pause, b.Max)
	return pauses.Jitter(pause)
}

// Bound is the longest that the next pause can be.
func (b *Backoff) Bound() time.Duration { return max(b.next, b.Initial) }

// AtLeast raises the bound of the next pause.
func (b *Backoff) AtLeast(bound time.Duration) { b.next = max(b.next, bound) }

// Reset makes the next pause the first one again.
func (b *Backoff) Reset() { b.next = 0 }
