package relay

import (
	"cmp"
	"container/heap"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// waiter is a message of a tier that is not acknowledged yet.
type waiter struct {
	msg        *message.Message
	record     retry.Record
	known      bool   // the record names a handler
	key        string // the key of its return topic
	receivedAt time.Time
	until      time.Time // when to settle it
	number     int       // breaks ties: messages that are due together keep their order
	tries      int       // failed attempts to forward it
	failing    time.Time // since when
	postponed  bool      // it is to be published to a tier again
	cancelled  bool      // the backend has cancelled this delivery
	unwatch    func() bool
}

// gone reports whether the backend has taken the message back.
func (w *waiter) gone() bool { return w.msg.Context().Err() != nil }

// queue orders the messages that wait by until, because some backends deliver all messages at once and slightly out of
// order. Most backends deliver one message at a time; then the queue contains only one.
type queue struct {
	all    []*waiter
	number int
}

func (q *queue) Len() int { return len(q.all) }
func (q *queue) Less(i, j int) bool {
	return compare(q.all[i], q.all[j]) < 0
}
func (q *queue) Swap(i, j int) { q.all[i], q.all[j] = q.all[j], q.all[i] }
func (q *queue) Push(x any)    { q.all = append(q.all, x.(*waiter)) }
func (q *queue) Pop() any {
	last := len(q.all) - 1
	w := q.all[last]
	q.all[last] = nil
	q.all = q.all[:last]
	return w
}

func (q *queue) add(w *waiter) {
	if w.number == 0 {
		q.number++
		w.number = q.number
	}
	heap.Push(q, w)
}

func (q *queue) take() *waiter { return heap.Pop(q).(*waiter) }

// sort restores the order after times have changed.
func (q *queue) sort() { heap.Init(q) }

// compare puts the message first whose time comes first.
func compare(a, b *waiter) int {
	if c := a.until.Compare(b.until); c != 0 {
		return c
	}
	return cmp.Compare(a.number, b.number)
}
