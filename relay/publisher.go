package relay

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// failurePublisher is the middleware's publisher. A message to a tier that must wait longer than one hop gets the end
// of its first hop.
type failurePublisher struct{ relay *Relay }

func (p failurePublisher) Publish(topic string, messages ...*message.Message) error {
	tier, isTier := p.relay.tiers.Load().byTopic[topic]
	now := time.Now()
	for _, msg := range messages {
		delete(msg.Metadata, HopKey)
		if !isTier {
			continue
		}
		record, known := retry.ReadRecord(msg.Metadata)
		if known && record.DueAt.After(now.Add(tier.longest+tier.slack())) {
			tier.startHop(msg.Metadata, now)
		}
	}
	return observed{p.relay.config.Publisher, &p.relay.observers, true}.Publish(topic, messages...)
}

func (p failurePublisher) Close() error { return p.relay.config.Publisher.Close() }
