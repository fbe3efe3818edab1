package natsretry

import (
	"container/heap"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nuid"
)

// slots are the subjects of the messages that wait. Each waits on a subject of its own, because a schedule replaces the
// one before it on its subject. The server remembers every subject that has had one until it restarts, so a subject is
// used again, when the message on it must be gone. Where it is not, the server refuses the next one.
type slots struct {
	base string

	mu   sync.Mutex
	free slotHeap
	made int
}

type slot struct {
	subject string
	free    time.Time // when the message on it must be gone
}

// slotSlack is how much later than it is due a message may leave its subject.
const slotSlack = 2 * time.Second

func newSlots(prefix string) *slots { return &slots{base: prefix + ".wait." + nuid.Next() + "."} }

// take returns a subject that no message of this process is on.
func (s *slots) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) > 0 && time.Now().After(s.free[0].free) {
		return heap.Pop(&s.free).(slot).subject
	}
	return s.add()
}

// fresh returns a subject that has never been used.
func (s *slots) fresh() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add()
}

func (s *slots) add() string {
	s.made++
	return s.base + strconv.Itoa(s.made)
}

// put makes a subject usable again after a time.
func (s *slots) put(subject string, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	heap.Push(&s.free, slot{subject, time.Now().Add(after + slotSlack)})
}

// slotHeap has the slot first that is free first.
type slotHeap []slot

func (h slotHeap) Len() int           { return len(h) }
func (h slotHeap) Less(i, j int) bool { return h[i].free.Before(h[j].free) }
func (h slotHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *slotHeap) Push(x any)        { *h = append(*h, x.(slot)) }
func (h *slotHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = slot{}
	*h = (*h)[:last]
	return x
}
