package natsretry

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/inflight"
)

// subscriber reads the topics of a handler.
type subscriber struct {
	server      *server
	group       string
	concurrency int
	links       *links
	logger      watermill.LoggerAdapter
	readers     inflight.Readers
}

// Subscribe makes the consumer of the topic before it returns: what is published from then on waits for it.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	q := &queue{
		server: s.server, group: s.group, topic: topic, links: s.links, logger: s.logger,
		waits: newWaits(s.server.Lease),
	}
	if err := q.prepare(ctx); err != nil {
		return nil, err
	}
	s.links.read(ctx)
	return s.readers.Begin(ctx, inflight.Config{
		Queue: q, Name: topic, Concurrency: s.concurrency, Lease: s.server.Lease, Logger: s.logger,
	}, nil)
}

// Close ends the subscriptions, and gives back the messages in flight.
func (s *subscriber) Close() error { return s.readers.Close() }
