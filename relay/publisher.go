package relay

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/middleware"
)

// hopKey is the metadata key of when a message's present hop ends, where its tier takes several. It never leaves the tiers.
const hopKey = "retry_hop_due_at"

const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// failurePublisher is what the middleware publishes with: what goes to a tier and has to wait longer than the tier's messages
// are held gets the end of its first hop.
type failurePublisher struct{ relay *Relay }

func (p failurePublisher) Publish(topic string, messages ...*message.Message) error {
	tier, waits := p.relay.hops[topic]
	now := time.Now()
	for _, msg := range messages {
		delete(msg.Metadata, hopKey)
		if !waits {
			continue
		}
		record, known := middleware.ReadRecord(msg.Metadata)
		if known && record.DueAt.After(now.Add(tier.hold+tier.slack())) {
			tier.startHop(msg.Metadata, now)
		}
	}
	return p.relay.config.Publisher.Publish(topic, messages...)
}

func (p failurePublisher) Close() error { return p.relay.config.Publisher.Close() }

func (t tierTopic) startHop(metadata message.Metadata, now time.Time) {
	metadata[hopKey] = ceilMillisecond(now.Add(t.hold)).UTC().Format(timeLayout)
}

// slack is how much longer than its hop a message is held, rather than hop once more for it: clocks differ a little.
func (t tierTopic) slack() time.Duration { return t.hold/20 + 2*time.Millisecond }

// hopEnd is when the message's present hop ends. A time that cannot be read counts as none.
func hopEnd(metadata message.Metadata) (time.Time, bool) {
	text, found := metadata[hopKey]
	if !found {
		return time.Time{}, false
	}
	end, err := time.Parse(timeLayout, text)
	return end, err == nil
}

// dueAt is when a message is to be back, and not before: the record's times are cut to whole milliseconds.
func dueAt(record middleware.Record) time.Time {
	if record.DueAt.IsZero() {
		return record.DueAt
	}
	return record.DueAt.Add(time.Millisecond)
}

func ceilMillisecond(t time.Time) time.Time {
	if cut := t.Truncate(time.Millisecond); cut.Before(t) {
		return cut.Add(time.Millisecond)
	}
	return t
}

func ceilMilliseconds(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1) / time.Millisecond * time.Millisecond
}
