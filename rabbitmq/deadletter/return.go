package deadletter

import (
	"context"
	"errors"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
)

const (
	// mostReturn bounds how long a look waits until the queue has a batch of letters back, and returnPause is how
	// often it asks.
	mostReturn  = 5 * time.Second
	returnPause = 2 * time.Millisecond

	// mostFinished is how many letters a look that ends early still fetches, so that they keep their order.
	mostFinished = 10_000

	// mostOrdered is how many letters a quorum queue takes back in their order, up to RabbitMQ 3.13.
	mostOrdered = 32
)

// close gives back what is unacknowledged, in its order, and waits until the queue has it: a reader that comes before
// gets it in another order. It returns an error where letters are near the delivery limit and cannot be replaced by
// copies.
//
// A quorum queue puts what it gets back behind what it got back before. So a look that ends early first fetches the
// rest, unless ctx has ended or there are many.
func (l *look) close(ctx context.Context) error {
	defer func() { _ = l.channel.Close() }()
	defer func() {
		if l.copies != nil {
			l.copies.close()
		}
	}()
	if l.connection.Client.IsClosed() { // the broker has all letters back, and a copy would be a second one
		return l.stays
	}
	for l.left <= mostFinished && l.received > 0 {
		if d, err := l.next(ctx); d == nil || err != nil || l.keep(ctx, d) != nil {
			break
		}
	}
	// settle fetches letters, too.
	if l.cancel() != nil || l.giveUp(ctx) != nil || l.settle() != nil || l.fetchBehind(ctx) != nil ||
		l.giveUp(ctx) != nil {
		return l.stays // the broker gives the letters back
	}
	want, alone := l.ready(), true // another reader may take what is given back
	for returned := range l.returns() {
		if l.channel.Nack(returned.last, !returned.alone, true) != nil {
			return l.stays
		}
		want += returned.letters
		for deadline := time.Now().Add(mostReturn); alone; time.Sleep(returnPause) {
			if ready := l.ready(); ready < 0 || ready >= want {
				break
			}
			alone = time.Now().Before(deadline)
		}
	}
	return l.stays
}

// fetchBehind fetches what is behind the letters of settle. RabbitMQ 3 puts what a quorum queue without a limit gets
// back at the end of the queue, where only all of its letters keep their order.
func (l *look) fetchBehind(ctx context.Context) error {
	if len(l.fetched) == 0 || l.limit != unknown || !workqueue.Before4(l.connection.Version()) {
		return nil
	}
	behind := l.ready()
	if behind < 0 || behind > mostFinished {
		return nil
	}
	behind += len(l.fetched)
	l.total, l.left, l.least = l.total+behind, behind, 0
	for {
		if d, err := l.next(ctx); d == nil || err != nil {
			return errors.Join(err, l.cancel())
		}
	}
}

// A batch is letters that are given back with one nack: those up to a delivery tag, or alone the one with this tag.
type batch struct {
	last    uint64
	letters int
	alone   bool
}

// A getTag is the delivery tag of a letter of a basic.get. The letter was in the queue behind those of the consumers
// before, and can have a lower tag than the last of these.
type getTag struct {
	tag   uint64
	after int // how many consumers were before it
}

// returns goes through what is unacknowledged, in batches of one consumer.
func (l *look) returns() iter.Seq[batch] {
	most := math.MaxInt
	if workqueue.Before4(l.connection.Version()) {
		most = mostOrdered
	}
	return func(yield func(batch) bool) {
		rest, begin := l.gets, uint64(1)
		for n := range len(l.consumers) + 1 {
			for ; len(rest) > 0 && rest[0].after == n; rest = rest[1:] {
				if !l.settled.has(rest[0].tag) && !yield(batch{last: rest[0].tag, letters: 1, alone: true}) {
					return
				}
			}
			if n == len(l.consumers) {
				return
			}
			last := l.consumers[n]
			next := batch{alone: len(rest) > 0 && rest[0].tag < last}
			for tag := begin; tag <= last; tag++ {
				if l.settled.has(tag) || slices.ContainsFunc(l.gets, func(g getTag) bool { return g.tag == tag }) {
					continue
				}
				next.last, next.letters = tag, next.letters+1
				if next.alone || next.letters == most {
					if !yield(next) {
						return
					}
					next.letters = 0
				}
			}
			if next.letters > 0 && !yield(next) {
				return
			}
			begin = last + 1
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
	words []uint64     // a bit for each tag
	all   atomic.Int64 // members
	after uint64       // a tag
	later int          // members after it
}

// begin counts from here on the members after a tag, for since.
func (b *bits) begin(after uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.after, b.later = after, 0
}

func (b *bits) since() (after uint64, members int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.after, b.later
}

func (b *bits) set(tag uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uint64(len(b.words)) <= tag/64 {
		b.words = append(b.words, 0) // grows by a share of its length
	}
	b.words[tag/64] |= 1 << (tag % 64)
	b.all.Add(1)
	if tag > b.after {
		b.later++
	}
}

func (b *bits) has(tag uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return tag/64 < uint64(len(b.words)) && b.words[tag/64]&(1<<(tag%64)) != 0
}
