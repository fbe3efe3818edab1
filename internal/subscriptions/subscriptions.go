// Package subscriptions keeps the state of subscriptions, for the Health of a Connection. It is internal because an app
// does not need it.
package subscriptions

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/tieredretry/watermill-retry/retry"
)

// List is the subscriptions of one Connection. The zero value is ready for use. It is safe for concurrent use.
type List struct {
	mu  sync.Mutex
	all map[*Subscription]bool
}

// Subscription is one subscription in a List.
type Subscription struct {
	list   *List
	health retry.SubscriptionHealth
}

// Begin adds a subscription that consumes. It replaces a failed one of the same name and topic.
func (l *List) Begin(name, topic string) *Subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.all {
		if s.health.Name == name && s.health.Topic == topic && !s.health.Consuming {
			delete(l.all, s)
		}
	}
	s := &Subscription{list: l, health: retry.SubscriptionHealth{
		Name: name, Topic: topic, Queue: topic, Consuming: true, Since: time.Now(),
	}}
	if l.all == nil {
		l.all = map[*Subscription]bool{}
	}
	l.all[s] = true
	return s
}

// Consumes records that a subscription that has failed consumes again. Its last error stays.
func (s *Subscription) Consumes() { s.set(true, nil) }

// Failed records that a subscription does not consume any more, or could not begin again.
func (s *Subscription) Failed(err error) { s.set(false, err) }

func (s *Subscription) set(consuming bool, err error) {
	s.list.mu.Lock()
	defer s.list.mu.Unlock()
	now := time.Now()
	if s.health.Consuming != consuming {
		s.health.Consuming, s.health.Since = consuming, now
	}
	if err != nil {
		s.health.LastError, s.health.LastErrorAt = err.Error(), now
	}
}

// End removes a subscription that its app has ended.
func (s *Subscription) End() {
	s.list.mu.Lock()
	defer s.list.mu.Unlock()
	delete(s.list.all, s)
}

// Health returns the state of all subscriptions, sorted by name and topic.
func (l *List) Health() []retry.SubscriptionHealth {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []retry.SubscriptionHealth
	for s := range l.all {
		all = append(all, s.health)
	}
	slices.SortFunc(all, func(a, b retry.SubscriptionHealth) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Topic, b.Topic))
	})
	return all
}
