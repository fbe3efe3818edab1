// Package subscriptions keeps the state of subscriptions, for the Health of a Connection. It is internal because an app
// does not need it.
package subscriptions

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tieredretry/watermill-retry/internal/gate"
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
	health retry.SubscriptionHealth // Consuming: it has not ended
	unread map[string]error         // why a topic cannot be read, by topic
	since  time.Time                // when the first of them could not be read, or the last one could again

	unsettled []func() int // how many messages are unsettled, by topic
}

// Begin adds a subscription that consumes.
func (l *List) Begin(name, topic string) *Subscription {
	s := l.New(name, topic)
	s.Begin()
	return s
}

// New returns a subscription that is not in the list before its Begin. What Read records before counts.
func (l *List) New(name, topic string) *Subscription {
	return &Subscription{list: l, health: retry.SubscriptionHealth{Name: name, Topic: topic, Queue: topic}}
}

// Begin adds a subscription that consumes. It replaces an ended one of the same name and topic.
func (s *Subscription) Begin() {
	l := s.list
	l.mu.Lock()
	defer l.mu.Unlock()
	for other := range l.all {
		if other.health.Name == s.health.Name && other.health.Topic == s.health.Topic && !other.health.Consuming {
			delete(l.all, other)
		}
	}
	s.health.Consuming, s.health.Since = true, time.Now()
	if l.all == nil {
		l.all = map[*Subscription]bool{}
	}
	l.all[s] = true
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
	if err == nil {
		return
	}
	s.health.LastError, s.health.LastErrorAt = err.Error(), now
	if len(s.unread) > 0 { // that is why it has ended; the next subscription records its own
		s.health.LastError += ": " + s.why()
		clear(s.unread)
	}
}

// Read records why a topic of the subscription cannot be read, or with nil that it can.
func (s *Subscription) Read(topic string, err error) {
	s.list.mu.Lock()
	defer s.list.mu.Unlock()
	_, before := s.unread[topic]
	if err == nil && !before {
		return
	}
	now := time.Now()
	if len(s.unread) == 0 {
		s.since = now
	}
	if err == nil {
		if delete(s.unread, topic); len(s.unread) == 0 {
			s.since = now
		}
		return
	}
	if s.unread == nil {
		s.unread = map[string]error{}
	}
	s.unread[topic] = err
	s.health.LastError, s.health.LastErrorAt = s.why(), now
}

// why names all topics that cannot be read.
func (s *Subscription) why() string {
	var all []string
	for _, topic := range slices.Sorted(maps.Keys(s.unread)) {
		all = append(all, fmt.Sprintf("cannot read %q: %v", topic, s.unread[topic]))
	}
	return strings.Join(all, "; ")
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
		h := s.health
		if h.Consuming && s.since.After(h.Since) {
			h.Since = s.since
		}
		if len(s.unread) > 0 {
			h.Consuming, h.LastError = false, s.why()
		}
		for _, count := range s.unsettled {
			h.Backlog += count()
		}
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b retry.SubscriptionHealth) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Topic, b.Topic))
	})
	return all
}

// Describe adds to the health of a subscription what limits its handler.
func Describe(s *retry.SubscriptionHealth, handlers *gate.Handlers) {
	g := handlers.Find(s.Name)
	if g == nil {
		return
	}
	for _, reason := range g.Paused() {
		s.Paused = append(s.Paused, string(reason))
	}
	s.PausedSince, s.PausedLimit, s.Holding = g.Since(), max(g.Limit(), 0), g.Held()
	for _, key := range g.Keys() {
		if s.Keys == nil {
			s.Keys = map[string]retry.KeyHealth{}
		}
		s.Keys[key.Key] = key.KeyHealth
	}
}
