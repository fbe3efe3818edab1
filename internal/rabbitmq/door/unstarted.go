package door

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// unstarted has the handlers that have not subscribed yet, with their topics.
type unstarted struct {
	mu     sync.Mutex
	topics map[*handlerSubscriber]string
}

func (u *unstarted) add(h *handlerSubscriber, topic string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.topics == nil {
		u.topics = map[*handlerSubscriber]string{}
	}
	u.topics[h] = topic
}

func (u *unstarted) remove(h *handlerSubscriber) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.topics, h)
}

// join joins to the refusal of a queue those of the handlers that have not subscribed yet: the router ends its Run
// with the first one, and starts handlers in a random order.
func (u *unstarted) join(err error) error {
	if !isRefused(err) {
		return err
	}
	u.mu.Lock()
	topics := maps.Clone(u.topics)
	u.mu.Unlock()
	all := []error{err}
	for _, h := range slices.SortedFunc(maps.Keys(topics), byName) {
		if other := h.explain(h.subscriber.SubscribeInitialize(topics[h])); isRefused(other) {
			all = append(all, other)
		} else if other != nil {
			break // the broker cannot answer now
		}
	}
	return errors.Join(all...)
}

func byName(a, b *handlerSubscriber) int { return cmp.Compare(a.name, b.name) }

// isRefused reports whether a work queue or its topology is not as it must be.
func isRefused(err error) bool {
	var conflict *topology.ArgumentConflictError
	return errors.As(err, &conflict) || errors.Is(err, topology.ErrUnprotectedQuorum) ||
		errors.Is(err, topology.ErrTransientQueue) || errors.Is(err, workqueue.ErrStream) ||
		refusal.IsCode(err, amqp091.AccessRefused) || refusal.IsCode(err, amqp091.NotFound)
}
