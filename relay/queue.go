package relay

import (
	"container/heap"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/middleware"
)

// held is a message of a tier that is not acknowledged yet.
type held struct {
	msg        *message.Message
	record     middleware.Record
	known      bool      // it has a record that names a handler
	receivedAt time.Time // its backend's redelivery limit counts from here
	until      time.Time // when something is to be done with it
	number     int       // breaks ties, so that what is due together keeps its order
	tries      int       // to publish it
	stale      bool      // the backend has given up on this delivery
}

// queue orders what is held by when it is due: some backends hand everything out at once, and not quite in order. Most hand
// out one message at a time, and then there is only one in it.
type queue struct {
	all    []*held
	number int
}

func (q *queue) Len() int { return len(q.all) }
func (q *queue) Less(i, j int) bool {
	a, b := q.all[i], q.all[j]
	if !a.until.Equal(b.until) {
		return a.until.Before(b.until)
	}
	return a.number < b.number
}
func (q *queue) Swap(i, j int) { q.all[i], q.all[j] = q.all[j], q.all[i] }
func (q *queue) Push(x any)    { q.all = append(q.all, x.(*held)) }
func (q *queue) Pop() any {
	last := len(q.all) - 1
	h := q.all[last]
	q.all[last] = nil
	q.all = q.all[:last]
	return h
}

func (q *queue) add(h *held) {
	if h.number == 0 {
		q.number++
		h.number = q.number
	}
	heap.Push(q, h)
}

func (q *queue) take() *held { return heap.Pop(q).(*held) }
