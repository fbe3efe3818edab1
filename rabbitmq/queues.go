package rabbitmq

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
)

// queues are the work queues of a Connection.
type queues struct {
	mu     sync.Mutex
	byName map[string]*workQueue
}

type workQueue struct {
	topic string
	tiers backoff.Schedule // of the schedules of all its handlers, ascending
}

// add adds the tiers of a handler. A work queue has one topic: with two, each handler would also get the messages of the
// other topic, and would count their failures from the beginning.
func (q *queues) add(queue, topic string, tiersOf []backoff.Tier) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.byName[queue]
	if w == nil {
		w = &workQueue{topic: topic}
		if q.byName == nil {
			q.byName = map[string]*workQueue{}
		}
		q.byName[queue] = w
	}
	if w.topic != topic {
		return fmt.Errorf("topic %q has the same work queue as topic %q: %q. Each would get messages of the other: "+
			"set a Group, or an AMQP.Queue.GenerateName with another name for each topic", topic, w.topic, queue)
	}
	tiers := slices.Clone(w.tiers) // a topology may use the present one
	for _, tier := range tiersOf {
		tiers = append(tiers, time.Duration(tier))
	}
	slices.Sort(tiers)
	w.tiers = slices.Compact(tiers)
	return nil
}

// schedule returns a schedule with all tiers of a work queue, or nil where it has no handler.
func (q *queues) schedule(queue string) backoff.Schedule {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.byName[queue]; w != nil {
		return w.tiers
	}
	return nil
}
