package deadletter

import (
	"iter"
	"math"
	"strings"
	"sync"
	"time"
)

const (
	// mostReturn bounds how long a look waits until the queue has a batch of letters back, and returnPause is how often it asks.
	mostReturn  = 5 * time.Second
	returnPause = 2 * time.Millisecond

	// mostOrdered is how many letters a quorum queue takes back in their order, up to RabbitMQ 3.13.
	mostOrdered = 32
)

// close gives back what is unacknowledged, in its order, and waits until the queue has it: a reader that comes before gets it in another
// order.
func (l *look) close() {
	if l.copies != nil {
		l.copies.close()
	}
	defer func() { _ = l.channel.Close() }()
	if l.cancel() != nil {
		return
	}
	want, alone := l.ready(), true // another reader may take what is given back
	for returned := range l.returns() {
		if l.channel.Nack(returned.last, true, true) != nil {
			return
		}
		want += returned.letters
		for deadline := time.Now().Add(mostReturn); alone; time.Sleep(returnPause) {
			if ready := l.ready(); ready < 0 || ready >= want {
				break
			}
			alone = time.Now().Before(deadline)
		}
	}
}

// A batch is letters that are given back with one nack: those up to a delivery tag.
type batch struct {
	last    uint64
	letters int
}

// returns goes through what is unacknowledged, in batches of one consumer.
func (l *look) returns() iter.Seq[batch] {
	most := math.MaxInt
	if strings.HasPrefix(l.connection.Version(), "3.") {
		most = mostOrdered
	}
	return func(yield func(batch) bool) {
		tag := uint64(1)
		for _, last := range l.consumers {
			next := batch{}
			for ; tag <= last; tag++ {
				if l.settled.has(tag) {
					continue
				}
				next.last, next.letters = tag, next.letters+1
				if next.letters == most {
					if !yield(next) {
						return
					}
					next = batch{}
				}
			}
			if next.letters > 0 && !yield(next) {
				return
			}
		}
	}
}

// ready returns how many letters the queue can deliver, or -1 where the broker does not answer.
func (l *look) ready() int {
	state, err := l.channel.QueueDeclarePassive(l.queue, true, false, false, false, nil)
	if err != nil {
		return -1
	}
	return state.Messages
}

// bits is a set of delivery tags: these are 1, 2, 3 and so on. It is safe for concurrent use.
type bits struct {
	mu    sync.Mutex
	words []uint64
}

func (b *bits) set(tag uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uint64(len(b.words)) <= tag/64 {
		b.words = append(b.words, 0)
	}
	b.words[tag/64] |= 1 << (tag % 64)
}

func (b *bits) has(tag uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return tag/64 < uint64(len(b.words)) && b.words[tag/64]&(1<<(tag%64)) != 0
}
