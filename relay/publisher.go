package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// Backend returns the backend of a middleware for handlers that the relay has added: give it to middleware.New. A
// policy with other tiers than Config.Policy adds them: a tier that is new is subscribed at once where tiers run, else
// with the first handler. The same prefix in other processes needs the tiers only while they have handlers that use
// them. The middleware refuses messages of handlers that the relay did not add.
func (r *Relay) Backend() backend.Backend { return relayBackend{r} }

type relayBackend struct{ relay *Relay }

// Use implements backend.Backend.
func (b relayBackend) Use(policy retry.Policy) (backend.Traits, error) {
	return backend.Traits{
		DelayArrivals: !b.relay.config.DelayedReturns, Source: b.relay.source, Observers: &b.relay.observers,
	}, b.relay.addTiers(middleware.Tiers(policy, false))
}

// Publish implements backend.Backend. A message to a tier that must wait longer than one hop gets the end of its
// first hop.
func (b relayBackend) Publish(c backend.Copy) (retry.Destination, error) {
	to := TopicParams{Kind: TierTopic, Tier: c.Tier}
	switch {
	case c.Tier == 0:
		to = TopicParams{Kind: DeadLetterTopic, Handler: c.Handler}
	case b.relay.config.DelayedReturns:
		to = TopicParams{Kind: ReturnTopic, Handler: c.Handler}
	}
	topic, err := b.relay.config.Topic(to)
	if err != nil {
		return retry.Destination{}, fmt.Errorf("cannot generate the destination: %w", err)
	}
	delete(c.Message.Metadata, recordkey.HopDueAt)
	if to.Kind == TierTopic {
		tier, now := b.relay.tiers.Load().byTier[c.Tier], time.Now()
		record, known := retry.ReadRecord(c.Message.Metadata)
		if known && record.DueAt.After(now.Add(tier.longest+tier.slack())) {
			tier.startHop(c.Message.Metadata, now)
		}
	}
	err = observed{b.relay.config.Publisher, &b.relay.observers, true}.Publish(topic, c.Message)
	return retry.Destination{Topic: topic}, ofCopy(err)
}

// ofCopy returns the error of a copy, as the retry middleware reads it. A copy may have arrived although the attempt
// took too long.
func ofCopy(err error) error {
	var classified *unpublished.Error
	var timed interface{ Timeout() bool }
	if err == nil || errors.As(err, &classified) || !errors.As(err, &timed) || !timed.Timeout() {
		return err
	}
	return &unpublished.Error{Kind: unpublished.Unconfirmed, Err: err}
}
