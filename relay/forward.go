package relay

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/retry"
)

// DeadReasonForeign is the dead reason of a message on a tier that has no failure record with a handler.
const DeadReasonForeign retry.DeadReason = "foreign"

const publishTimeout = 10 * time.Second

var errForeign = errors.New("the retry middleware did not publish this message")

// next returns the topic that a message goes to now and the metadata of its copy: the next hop, the return topic of its
// handler, or a dead-letter topic if the handler is unknown.
func (p *pump) next(w *waiter, now time.Time) (topic string, metadata message.Metadata) {
	metadata = make(message.Metadata, len(w.msg.Metadata)+2)
	maps.Copy(metadata, w.msg.Metadata)
	delete(metadata, recordkey.HopDueAt)
	switch {
	case !w.known:
		p.foreignRecord(w.record, now).Write(metadata)
		return p.relay.topics.Dead(relaytopic.Unknown), metadata
	case now.Before(dueAt(w.record)):
		rest := dueAt(w.record).Sub(now)
		tier := p.tierFor(rest)
		if tier.topic == p.topic || rest > tier.longest+tier.slack() {
			tier.startHop(metadata, now)
		}
		return tier.topic, metadata
	default:
		return p.relay.topics.Return(w.record.Handler), metadata
	}
}

// foreignRecord completes the record of a message that is dead-lettered because its handler is unknown, so that
// retry.ReadRecord reads it. The record is zero if the message had no readable one.
func (p *pump) foreignRecord(record retry.Record, now time.Time) retry.Record {
	record.Failures = max(record.Failures, 1)
	if record.LastFailedAt.IsZero() {
		record.LastFailedAt = now
	}
	if record.FirstFailedAt.IsZero() {
		record.FirstFailedAt = record.LastFailedAt
	}
	if record.Reason == "" {
		record.Reason = errForeign.Error()
	}
	if record.Topic == "" {
		record.Topic = p.topic
	}
	record.DueAt, record.DeadReason, record.Subscriber = time.Time{}, DeadReasonForeign, structName(p.subscriber)
	return record
}

// tierFor returns the tier on which a message waits for the rest of its delay. That is its own tier, unless less than
// one hop remains (a requested delay can do that): at the end of its own tier it would wait behind messages that are
// due later. A message of a host with another clock can be due after its tier: it waits on the longest tier that is not
// above the rest, where it makes fewer hops.
func (p *pump) tierFor(rest time.Duration) tierTopic {
	tiers := p.relay.tiers.Load()
	if rest > p.hop*3/4 {
		for _, tier := range slices.Backward(tiers.declared) {
			if tier > p.tier && time.Duration(tier) <= rest {
				return tiers.byTier[tier]
			}
		}
		return p.tierTopic
	}
	for _, tier := range tiers.declared {
		if tier < p.tier && time.Duration(tier) >= rest {
			return tiers.byTier[tier]
		}
	}
	return p.tierTopic
}

// publish publishes a copy under a context of its own: the message's context may end with the subscription.
func (p *pump) publish(w *waiter, topic string, metadata message.Metadata) error {
	if !w.known {
		p.relay.logger.Error("Message on a tier has no failure record that names a handler, dead-lettering it",
			errForeign,
			p.fields().Add(watermill.LogFields{"message_uuid": w.msg.UUID, "destination": topic}))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.msg.Context()), publishTimeout)
	defer cancel()
	letter := message.NewMessageWithContext(ctx, w.msg.UUID, w.msg.Payload)
	letter.Metadata = metadata
	return panics.Error("the publisher", func() error { return p.relay.config.Publisher.Publish(topic, letter) })
}
