package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/middleware"
)

// DeadReasonForeign is why a message was dead-lettered that was on a tier without a failure record that says whose it is.
const DeadReasonForeign middleware.DeadReason = "foreign"

const publishTimeout = 10 * time.Second

var errEnded = errors.New("the subscriber closed its channel")

// next is where a message goes now, and with which metadata: to another hop, back to its handler, or, where it does not say to
// which, to a dead-letter topic. The metadata are a copy.
func (p *pump) next(h *held, now time.Time) (TopicParams, message.Metadata) {
	metadata := make(message.Metadata, len(h.msg.Metadata)+2)
	maps.Copy(metadata, h.msg.Metadata)
	delete(metadata, hopKey)
	switch {
	case !h.known:
		metadata[middleware.DeadReasonKey] = string(DeadReasonForeign)
		return TopicParams{Kind: DeadLetterTopic, Handler: UnknownHandler}, metadata
	case now.Before(dueAt(h.record)):
		rest := dueAt(h.record).Sub(now)
		tier := p.tierFor(rest)
		if tier.topic == p.topic || rest > tier.hold+tier.slack() {
			tier.startHop(metadata, now)
		}
		return TopicParams{Kind: TierTopic, Tier: tier.tier}, metadata
	default:
		return TopicParams{Kind: ReturnTopic, Handler: h.record.Handler}, metadata
	}
}

// tierFor is where a message waits for the rest of its time: on its own tier, unless less than a hop is left, as a wish of
// backoff.RetryAfter may have it. There it would be behind others that are due later.
func (p *pump) tierFor(rest time.Duration) tierTopic {
	if rest > p.hold*3/4 {
		return p.tierTopic
	}
	for _, tier := range p.relay.config.Schedule.Tiers() {
		if tier < p.tier && time.Duration(tier) >= rest {
			return p.relay.byTier[tier]
		}
	}
	return p.tierTopic
}

// publish publishes a copy under a context of its own: the message's may end with the subscription.
func (p *pump) publish(h *held, to TopicParams, metadata message.Metadata) (topic string, err error) {
	topic, err = p.relay.config.topic(to)
	if err != nil && to.Kind == ReturnTopic { // a handler whose name cannot be one
		p.relay.logger.Error("Message of a tier has no return topic", err, p.fields().Add(watermill.LogFields{"message_uuid": h.msg.UUID}))
		h.known = false
		to, metadata = p.next(h, time.Now())
		topic, err = p.relay.config.topic(to)
	}
	if err != nil {
		return "", err
	}
	if to.Kind == DeadLetterTopic {
		p.relay.logger.Error("Message on a tier has no failure record that can be read: dead-lettered", errForeign,
			p.fields().Add(watermill.LogFields{"message_uuid": h.msg.UUID, "dead_letter_topic": topic}))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.msg.Context()), publishTimeout)
	defer cancel()
	letter := message.NewMessageWithContext(ctx, h.msg.UUID, h.msg.Payload)
	letter.Metadata = metadata
	defer func() {
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("the publisher panicked: %v", recovered)
		}
	}()
	return topic, p.relay.config.Publisher.Publish(topic, letter)
}

var errForeign = errors.New("not a message that the retry middleware has published")

// pause doubles with every failure.
func pause(failures int) time.Duration {
	return min(pauseInitial<<min(failures, 10), pauseLongest)
}

// jitter makes half of a pause chance, so that messages do not come back together.
func jitter(pause time.Duration) time.Duration { return pause/2 + rand.N(pause/2) }

// sleep tells whether the context lasted as long.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
