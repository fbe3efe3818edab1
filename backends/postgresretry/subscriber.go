package postgresretry

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/inflight"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/relay"
)

// subscriber is that of one handler. It reads return topics, and the app's topics from the tables of watermill-sql.
type subscriber struct {
	config    Config
	params    relay.SubscriberParams
	publisher *publisher // with a source
	logger    watermill.LoggerAdapter
	readers   inflight.Readers
}

// Subscribe implements message.Subscriber.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.publisher.names.IsReturn(topic) {
		return s.subscribeReturns(ctx, topic)
	}
	if err := checkTopic(topic, true); err != nil {
		return nil, err
	}
	tables := s.publisher.topics
	if err := errors.Join(tables.makeMessages(ctx, topic), tables.makeOffsets(ctx, topic)); err != nil {
		return nil, err
	}
	returnTopic := s.publisher.names.Return(relaytopic.Key(s.params.Group, topic))
	app, err := s.publisher.source.open(ctx, topic, s.params.Group, returnTopic)
	if err != nil {
		return nil, err
	}
	return s.read(ctx, s.publisher.source.queue(returnTopic, app), topic)
}

func (s *subscriber) subscribeReturns(ctx context.Context, topic string) (<-chan *message.Message, error) {
	table := newTable(s.config.Table)
	if _, err := s.config.DB.ExecContext(ctx,
		`INSERT INTO `+table.handlers()+` (topic) VALUES ($1::text) ON CONFLICT DO NOTHING`, topic); err != nil {
		return nil, fmt.Errorf("cannot note that topic %q has a handler: %w", topic, err)
	}
	return s.read(ctx, s.publisher.source.queue(topic, nil), topic)
}

// read delivers the messages of a queue. Close ends it.
func (s *subscriber) read(ctx context.Context, q queue, topic string) (<-chan *message.Message, error) {
	return s.readers.Begin(ctx, inflight.Config{
		Queue: q, Concurrency: s.params.Concurrency, Lease: s.config.Lease, Logger: s.logger, Name: topic,
	}, func() error { q.alarm.Close(); return nil })
}

// Close implements message.Subscriber.
func (s *subscriber) Close() error { return s.readers.Close() }

// String returns the name that the router gives to the subscriber.
func (*subscriber) String() string { return "postgresretry.Subscriber" }
