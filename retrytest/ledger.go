package retrytest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ledger records every message of the app and its deliveries. It is safe for concurrent use.
type ledger struct {
	mu       sync.Mutex
	queues   []*queue
	handlers map[string]*queue // the queue that a handler consumes, by handler name
	entries  []*entry
	latest   map[progressKey]*progress
	produced map[string][]*message.Message // what was produced, by topic
	open     map[*delivery]bool            // deliveries that are not settled, or whose handler runs
	changed  chan struct{}                 // closed at the next change
}

func newLedger() *ledger {
	return &ledger{
		handlers: map[string]*queue{},
		latest:   map[progressKey]*progress{}, produced: map[string][]*message.Message{}, open: map[*delivery]bool{},
		changed: make(chan struct{}),
	}
}

// notifyChanged wakes all waiters. It is called with the lock held.
func (l *ledger) notifyChanged() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// queue returns the queue of a topic for a group, and whether it is new.
func (l *ledger) queue(group, topic string) (q *queue, made bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.queues {
		if q.group == group && q.topic == topic {
			return q, false
		}
	}
	q = &queue{
		group: group, topic: topic, arrived: make(chan *message.Message), back: make(chan *message.Message),
		messages: make(chan *message.Message),
	}
	l.queues = append(l.queues, q)
	return q, true
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
		topics[q.topic] = true
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

// entry is a published message in the ledger.
type entry struct {
	topic  string
	msg    *message.Message
	groups []*progress // one for each consumer group of the topic
}

// progress is what has happened to a message in one consumer group.
type progress struct {
	entry      *entry
	queue      *queue
	published  int       // how often the message was published with the same UUID before the first was finished
	unfinished int       // how many of these are not finished
	copies     int       // how many copies the middleware has published: retried, parked or dead-lettered
	first      time.Time // the first delivery
	latest     time.Time // the latest event
	due        time.Time // when the next retry is due; zero if none is
	problem    string    // why the message cannot be finished; empty if it can
	deliveries []*delivery
	deadLetter *message.Message
}

type progressKey struct {
	queue *queue
	uuid  string
}

// addPublished adds a message to the ledger, and returns the queues of its topic. It must be called before the message
// can be delivered. It returns the existing entry if a message with the same UUID is not finished yet.
func (l *ledger) addPublished(topic string, msg *message.Message) (e *entry, queues []*queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e = &entry{topic: topic, msg: msg.Copy()}
	for _, q := range l.queues {
		if q.topic != topic {
			continue
		}
		queues = append(queues, q)
		key := progressKey{q, msg.UUID}
		if p := l.latest[key]; p != nil && p.unfinished > 0 {
			p.unfinished, p.published = p.unfinished+1, p.published+1
			e = p.entry
			continue
		}
		p := &progress{entry: e, queue: q, unfinished: 1, published: 1, latest: time.Now()}
		l.latest[key] = p
		e.groups = append(e.groups, p)
	}
	if len(e.groups) > 0 && !slices.Contains(l.entries, e) {
		l.entries = append(l.entries, e)
	}
	l.notifyChanged()
	return e, queues
}

// finished reports whether no delivery follows and no handler of the message runs. A handler may nack the message
// itself and return after another handler has finished it.
func (p *progress) finished() bool {
	return p.unfinished == 0 && !slices.ContainsFunc(p.deliveries, (*delivery).isOpen)
}

// nacks returns how often the message was given back.
func (p *progress) nacks() int { return len(p.deliveries) - p.copies - p.published + 1 }

// waitsFor describes the event that the message waits for, for a test that has waited too long.
func (p *progress) waitsFor() string {
	if len(p.deliveries) == 0 {
		return "it did not reach its handler"
	}
	for _, d := range p.deliveries {
		if d.runs() {
			return fmt.Sprintf("handler %q has not returned", d.Handler)
		}
	}
	if p.deliveries[len(p.deliveries)-1].settled {
		return "it did not come back"
	}
	return "it was delivered, and neither acked nor nacked"
}
