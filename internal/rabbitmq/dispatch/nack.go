package dispatch

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/redelivery"
)

// shortestNack is the pause before a message goes back that is nacked for the first time.
const shortestNack = 10 * time.Millisecond

// maxCounts is how many messages a nackCounts remembers for certain.
const maxCounts = 1024

// nackCounts counts the nacks of each message, for queues that do not count deliveries.
type nackCounts struct {
	seed maphash.Seed
	size atomic.Int64 // the size of both maps, read without the lock

	mu      sync.Mutex
	by, old map[uint64]int64 // old is by, when it was full
}

func newNackCounts() *nackCounts {
	return &nackCounts{seed: maphash.MakeSeed(), by: make(map[uint64]int64)}
}

// count returns how often the message was delivered before this delivery, as far as that is known, and counts a nack of
// it.
func (c *nackCounts) count(a *Arrival) int64 {
	id := c.identify(a)
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.by[id]
	if !known {
		before = c.old[id]
		if len(c.by) == maxCounts {
			c.old, c.by = c.by, make(map[uint64]int64)
		}
	}
	c.by[id] = before + 1
	c.size.Store(int64(len(c.by) + len(c.old)))
	return max(before, redelivery.Count(a.Delivery.Headers))
}

// forget is called when a redelivered message was acked.
func (c *nackCounts) forget(a *Arrival) {
	if c.size.Load() == 0 {
		return
	}
	id := c.identify(a)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.by, id)
	delete(c.old, id)
	c.size.Store(int64(len(c.by) + len(c.old)))
}

// identify returns the same number for each delivery of a message. Different messages with the same number share a
// count.
func (c *nackCounts) identify(a *Arrival) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	d := a.Delivery
	switch {
	case a.Msg != nil && a.Msg.UUID != "":
		_, _ = h.WriteString(a.Msg.UUID)
	case d.MessageId != "":
		_, _ = h.WriteString(d.MessageId)
	default:
		_, _ = h.WriteString(d.RoutingKey)
		_, _ = h.Write(d.Body)
	}
	return h.Sum64()
}
