package kafkaretry

import (
	"sync"
	"sync/atomic"

	"github.com/IBM/sarama"
)

// backlog counts the messages of a topic that are not settled, in the partitions that a subscription has now. It asks
// no broker: each answer to a fetch has the end of its partition.
type backlog struct {
	mu  sync.Mutex
	all map[*partition]bool
}

// partition is one that a subscription has.
type partition struct {
	claim sarama.ConsumerGroupClaim
	next  atomic.Int64 // the offset after that of the last message that was settled; below 0: not known
}

func (b *backlog) begin(claim sarama.ConsumerGroupClaim) *partition {
	p := &partition{claim: claim}
	p.next.Store(claim.InitialOffset())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[*partition]bool{}
	}
	b.all[p] = true
	return p
}

func (b *backlog) end(p *partition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all, p)
}

// read is called with each message. A group that has settled none begins with the oldest, whose offset is not known
// before.
func (p *partition) read(msg *sarama.ConsumerMessage) {
	if next := p.next.Load(); next < 0 {
		p.next.CompareAndSwap(next, msg.Offset)
	}
}

func (b *backlog) count() (unsettled int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range b.all {
		if next := p.next.Load(); next >= 0 {
			unsettled += int(max(0, p.claim.HighWaterMarkOffset()-next))
		}
	}
	return unsettled
}
