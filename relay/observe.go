package relay

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

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
	report := retry.Published{
		Topic: topic, Copy: p.copies, Messages: len(messages), Result: retry.PublishConfirmed, Took: time.Since(began),
	}
	if messages[0] != nil {
		report.Context = messages[0].Context()
	}
	if err != nil {
		report.Result = retry.PublishFailed
	}
	p.observers.Published(report)
	return err
}

// waiting returns the messages that this process keeps until they are due, for each tier that is subscribed. Messages
// that the backend has not delivered yet, and dead letters, are not shown: no Pub/Sub of Watermill counts them.
func (r *Relay) waiting(context.Context) (all []retry.Waiting, err error) {
	r.running.Range(func(p, _ any) bool {
		all = append(all, p.(*pump).shown())
		return true
	})
	slices.SortFunc(all, func(a, b retry.Waiting) int { return cmp.Compare(a.Tier, b.Tier) })
	return all, nil
}

// shown returns what the pump keeps.
func (p *pump) shown() retry.Waiting {
	w := retry.Waiting{Kind: retry.WaitingTier, Queue: p.topic, Tier: p.tier}
	p.mu.Lock()
	defer p.mu.Unlock()
	w.Messages = p.waiting.Len()
	for _, kept := range p.waiting.all {
		due := dueAt(kept.record)
		if !kept.known || due.IsZero() {
			due = kept.receivedAt // it does not wait for a delay
		}
		if w.NextDue.IsZero() || due.Before(w.NextDue) {
			w.NextDue = due
		}
	}
	return w
}
