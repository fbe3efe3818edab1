package door

import (
	"fmt"
	"slices"
	"sync"

	"github.com/tieredretry/watermill-retry/backoff"
)

// queues are the work queues of a Connection.
type queues struct {
	mu     sync.Mutex
	byName map[string]*workQueue
}

type workQueue struct {
	topic string
	group string         // the group of tiers; empty: it has tiers of its own
	tiers []backoff.Tier // the tiers of all its handlers, ascending
	order order

	first    string           // the handler that was added first
	schedule backoff.Schedule // the schedule of its policy
}

// add adds the tiers of a handler. A work queue has one topic: with two, each handler would also get the messages of
// the other topic, and would count their failures from the beginning. It has one group, to which its copies are
// published.
func (q *queues) add(queue, topic, group string, tiers []backoff.Tier, in order) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.byName[queue]
	if w == nil {
		w = &workQueue{topic: topic, group: group, order: in}
		if q.byName == nil {
			q.byName = map[string]*workQueue{}
		}
		q.byName[queue] = w
	}
	if w.topic != topic {
		return fmt.Errorf("topic %q has the same work queue as topic %q: %q. Each would get messages of the other: "+
			"set a Group, or an AMQP.Queue.GenerateName with another name for each topic", topic, w.topic, queue)
	}
	if w.group != group {
		return fmt.Errorf("TierGroup is %q, and that of another handler of work queue %q is %q: give both the same",
			group, queue, w.group)
	}
	if w.order.partitions != in.partitions || w.order.prefetch != in.prefetch {
		return fmt.Errorf("Order.Partitions is %d and Prefetch %d, and another handler of work queue %q has %d and %d: "+
			"give both the same", in.partitions, in.prefetch, queue, w.order.partitions, w.order.prefetch)
	}
	for _, other := range q.byName {
		if q.byName[other.group] != nil {
			return fmt.Errorf("TierGroup %q has the name of work queue %q: the tiers of both would have the same "+
				"names; give the group another name", other.group, other.group)
		}
	}
	all := slices.Concat(w.tiers, tiers) // a topology may use the present ones
	slices.Sort(all)
	w.tiers = slices.Compact(all)
	return nil
}

// other returns another handler of a work queue, whose schedule is a different one: which of both retries a message is
// chance. It returns false where there is none.
func (q *queues) other(
	queue, handler string, schedule backoff.Schedule,
) (first string, its backoff.Schedule, differs bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.byName[queue]
	if w.schedule == nil || w.first == handler {
		w.first, w.schedule = handler, schedule
	}
	return w.first, w.schedule, !slices.Equal(w.schedule, schedule)
}

// of returns the group and all tiers of a work queue. It returns false where the queue has no handler.
func (q *queues) of(queue string) (group string, tiers []backoff.Tier, found bool) {
	if q == nil {
		return "", nil, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.byName[queue]; w != nil {
		return w.group, w.tiers, true
	}
	return "", nil, false
}

// order is the order that a work queue keeps.
func (q *queues) order(queue string) order {
	if q == nil {
		return order{}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.byName[queue]; w != nil {
		return w.order
	}
	return order{}
}
