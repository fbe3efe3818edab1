package relay

import (
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/retry"
)

// Use implements backend.Backend. The tiers of the policy are added to those of the relay: a tier that is new is
// subscribed at once where tiers run, else with the first handler.
func (r *relay) Use(policy retry.Policy) (backend.Traits, error) {
	return backend.Traits{
		DelayArrivals: true, Source: r.source, Observers: &r.observers,
	}, r.addTiers(policy)
}

// Publish implements backend.Backend. A message to a tier that must wait longer than the tier gets the end of its stay.
func (r *relay) Publish(c backend.Copy) (backend.Destination, error) {
	metadata := c.Message.Metadata
	delete(metadata, recordkey.LeaveAt)
	delete(metadata, recordkey.ReturnTo)
	var topic string
	switch {
	case c.Tier == 0:
		topic = r.topics.Dead(c.Queue)
	case r.config.DelayedReturns:
		topic = r.topics.Return(c.Queue)
	default:
		if c.Queue != c.Handler {
			metadata[recordkey.ReturnTo] = c.Queue
		}
		topic = r.topics.Tier(c.Tier)
		tier, now := r.tiers.Load().byTier[c.Tier], time.Now()
		record, known := retry.ReadRecord(metadata)
		if known && record.DueAt.After(now.Add(tier.longest+tier.slack())) {
			setLeaveAt(metadata, now.Add(tier.longest))
		}
	}
	err := observed{r.config.Publisher, &r.observers, true}.Publish(topic, c.Message)
	return backend.Destination{Topic: topic}, ofCopy(err)
}

// ofCopy returns the error of a copy, as the retry middleware reads it. A copy may have arrived although the attempt
// took too long, but not where it took too long to connect. ETIMEDOUT is of a connection that the system has given up.
func ofCopy(err error) error {
	var classified *unpublished.Error
	var timed interface{ Timeout() bool }
	var network *net.OpError
	if err == nil || errors.As(err, &classified) || !errors.As(err, &timed) || !timed.Timeout() ||
		errors.As(err, &network) && network.Op == "dial" {
		return err
	}
	unconfirmed := &unpublished.Error{Kind: unpublished.Unconfirmed, Err: err}
	if errors.Is(err, syscall.ETIMEDOUT) {
		unconfirmed.Lost = unpublished.ConnectionLost
	}
	return unconfirmed
}

// observed reports the results of a publisher.
type observed struct {
	message.Publisher
	observers *backend.Observers
	copies    bool
}

// Publish implements message.Publisher.
func (p observed) Publish(topic string, messages ...*message.Message) error {
	if !p.observers.Observes() || len(messages) == 0 {
		return p.Publisher.Publish(topic, messages...)
	}
	began := time.Now()
	err := p.Publisher.Publish(topic, messages...)
	report := backend.Published{
		Topic: topic, Copy: p.copies, Messages: len(messages), Result: backend.PublishConfirmed, Took: time.Since(began),
	}
	if messages[0] != nil {
		report.Context = messages[0].Context()
	}
	if err != nil {
		report.Result = backend.PublishFailed
	}
	p.observers.Published(report)
	return err
}

// openPublisher is that of the app. It ignores Close: the router closes the publisher of a handler while other handlers
// run.
type openPublisher struct{ observed }

func (openPublisher) Close() error { return nil }

func (p openPublisher) String() string { return structName(p.observed.Publisher) }
