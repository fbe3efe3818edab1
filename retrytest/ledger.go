package retrytest

import (
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/relay"
)

// ledger records every message of the app and its deliveries. It is safe for concurrent use.
type ledger struct {
	mu       sync.Mutex
	queues   []*queue
	handlers map[string]*queue // by handler name: the queue that the handler consumes
	returns  map[string]string // by return topic: the name of the handler that the relay has added
	entries  []*entry
	latest   map[progressKey]*progress
	produced map[string][]*message.Message // by topic
	open     map[*delivery]bool            // deliveries that are not settled, or whose handler runs
	changed  chan struct{}                 // closed at the next change
}

func newLedger() *ledger {
	return &ledger{
		handlers: map[string]*queue{}, returns: map[string]string{},
		latest: map[progressKey]*progress{}, produced: map[string][]*message.Message{}, open: map[*delivery]bool{},
		changed: make(chan struct{}),
	}
}

// notifyChanged wakes all waiters. It is called with the lock held.
func (l *ledger) notifyChanged() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// generateTopic names the relay's topics. The retries of a handler that the relay did not add return to the handler's
// queue.
func (l *ledger) generateTopic(p relay.TopicParams) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch p.Kind {
	case relay.TierTopic:
		return tierTopic(p.Tier), nil
	case relay.DeadLetterTopic:
		return deadTopic(p.Handler), nil
	}
	topic := returnTopic(p.Handler)
	if q := l.handlers[p.Handler]; q != nil && l.returns[topic] == "" {
		return q.returnTopic, nil
	}
	l.returns[topic] = p.Handler
	return topic, nil
}

// isReturnTopic reports whether it is the return topic of a handler that the relay has added.
func (l *ledger) isReturnTopic(topic string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.returns[topic] != ""
}

func (l *ledger) addQueue(q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queues = append(l.queues, q)
}

// addHandler adds a handler that may not get a message: others share its queue.
func (l *ledger) addHandler(name string, q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handlers[name] = q
}

// topicsWithHandlers returns the topics to which a test can send a message.
func (l *ledger) topicsWithHandlers() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	topics := map[string]bool{}
	for _, q := range l.queues {
		if l.returns[q.topic] == "" {
			topics[q.topic] = true
		}
	}
	return topics
}

func (l *ledger) addProduced(topic string, messages []*message.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, msg := range messages {
		l.produced[topic] = append(l.produced[topic], msg.Copy())
	}
}

func (l *ledger) producedMessages(topic string) []*message.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.produced[topic])
}
