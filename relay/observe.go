package relay

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/middleware"
)

// observed reports the results of a publisher.
type observed struct {
	message.Publisher
	observers *middleware.Observers
	copies    bool
}

// Publish implements message.Publisher.
func (p observed) Publish(topic string, messages ...*message.Message) error {
	if !p.observers.Observes() || len(messages) == 0 {
		return p.Publisher.Publish(topic, messages...)
	}
	began := time.Now()
	err := p.Publisher.Publish(topic, messages...)
	report := middleware.Published{
		Topic: topic, Copy: p.copies, Messages: len(messages), Result: middleware.PublishConfirmed, Took: time.Since(began),
	}
	if messages[0] != nil {
		report.Context = messages[0].Context()
	}
	if err != nil {
		report.Result = middleware.PublishFailed
	}
	p.observers.Published(report)
	return err
}

// waiting returns what the relay holds.
func (r *Relay) waiting(context.Context) ([]middleware.Waiting, error) { return nil, nil }
