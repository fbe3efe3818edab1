package subscriber

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/redelivery"
)

// pauseOf is how long a nack waits: initial, doubled count times, at most longest.
func pauseOf(count int64, initial, longest time.Duration) time.Duration {
	if count >= int64(bits.LeadingZeros64(uint64(initial))) || initial<<count > longest {
		return longest
	}
	return initial << count
}

// maxCounts is how many messages a nackCounts remembers.
const maxCounts = 1024

// nackCounts counts the nacks of each message, for queues that do not count deliveries.
type nackCounts struct {
	seed maphash.Seed
	size atomic.Int64 // len(by), read without the lock

	mu    sync.Mutex
	by    map[uint64]int64
	order []uint64 // a ring: the ids in by, oldest at next when it is full
	next  int
}

func newNackCounts() *nackCounts {
	return &nackCounts{seed: maphash.MakeSeed(), by: make(map[uint64]int64)}
}

// count returns how often the message was delivered before this delivery, as far as that is known, and counts a nack of
// it.
func (c *nackCounts) count(a *arrival) int64 {
	id := c.identify(a)
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.by[id]
	if !known {
		if len(c.order) < maxCounts {
			c.order = append(c.order, id)
		} else {
			delete(c.by, c.order[c.next])
			c.order[c.next] = id
		}
		c.next = (c.next + 1) % maxCounts
	}
	c.by[id] = before + 1
	c.size.Store(int64(len(c.by)))
	return max(before, redelivery.Count(a.delivery.Headers))
}

// forget is called when a redelivered message was acked.
func (c *nackCounts) forget(a *arrival) {
	if c.size.Load() == 0 {
		return
	}
	id := c.identify(a)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.by, id) // its place in the ring stays until it is overwritten
	c.size.Store(int64(len(c.by)))
}

// identify returns the same number for each delivery of a message. Different messages with the same number share a
// count.
func (c *nackCounts) identify(a *arrival) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	d := a.delivery
	switch {
	case a.msg != nil && a.msg.UUID != "":
		_, _ = h.WriteString(a.msg.UUID)
	case d.MessageId != "":
		_, _ = h.WriteString(d.MessageId)
	default:
		_, _ = h.WriteString(d.RoutingKey)
		_, _ = h.Write(d.Body)
	}
	return h.Sum64()
}
