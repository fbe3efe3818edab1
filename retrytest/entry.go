package retrytest

import (
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

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

// addPublished adds a message to the ledger. It must be called before the message can be delivered. It returns the
// existing entry if a message with the same UUID is not finished yet.
func (l *ledger) addPublished(topic string, msg *message.Message) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &entry{topic: topic, msg: msg.Copy()}
	for _, q := range l.queues {
		if q.topic != topic {
			continue
		}
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
	return e
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
