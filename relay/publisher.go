package relay

import (
	"errors"
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
	return ofCopy(observed{p.relay.config.Publisher, &p.relay.observers, true}.Publish(topic, messages...))
}

// ofCopy returns the error of a copy, as the retry middleware reads it. A copy may have arrived although the attempt
// took too long.
func ofCopy(err error) error {
	var classified *retry.PublishError
	var timed interface{ Timeout() bool }
	if err == nil || errors.As(err, &classified) || !errors.As(err, &timed) || !timed.Timeout() {
		return err
	}
	return &retry.PublishError{Kind: retry.KindUnconfirmed, Err: err}
}

func (p failurePublisher) Close() error { return p.relay.config.Publisher.Close() }
