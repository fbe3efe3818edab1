package redisretry

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/internal/inflight"
	"github.com/tieredretry/watermill-retry/relay"
)

// subscriber is that of one handler.
type subscriber struct {
	*server
	params  relay.SubscriberParams
	readers inflight.Readers
}

func newSubscriber(s *server, p relay.SubscriberParams) *subscriber {
	return &subscriber{server: s, params: p}
}

// Subscribe implements message.Subscriber.
func (s *subscriber) Subscribe(ctx context.Context, name string) (<-chan *message.Message, error) {
	if s.ctx.Err() != nil {
		return nil, inflight.ErrClosed
	}
	var queue inflight.Queue
	var leave func() error
	var err error
	if s.names.IsReturn(name) {
		queue, leave, err = s.returns(ctx, name)
	} else {
		queue, leave, err = s.topic(ctx, name)
	}
	if err != nil {
		return nil, err
	}
	return s.readers.Begin(ctx, inflight.Config{
		Queue: queue, Name: name, Concurrency: s.params.Concurrency, Lease: s.lease, Logger: s.logger,
	}, leave)
}

// returns notes on the server that the return topic has a handler, for a redrive.
func (s *subscriber) returns(ctx context.Context, name string) (inflight.Queue, func() error, error) {
	if err := s.client.SAdd(ctx, s.subscribed(name), name).Err(); err != nil {
		return nil, nil, err
	}
	r := newReturns(s.server, name)
	return r, func() error { r.alarm.Close(); return nil }, nil
}

// topic creates the consumer group of a topic.
func (s *subscriber) topic(ctx context.Context, name string) (inflight.Queue, func() error, error) {
	if err := s.createGroup(ctx, name, s.params.Group); err != nil {
		return nil, nil, fmt.Errorf("cannot create the consumer group %q of stream %q: %w", s.params.Group, name, err)
	}
	if err := s.checkVersion(ctx, name); err != nil {
		return nil, nil, err
	}
	t := newTopic(s.server, name, s.params.Group)
	return t, func() error {
		t.alarm.Close()
		ctx, cancel := s.command()
		defer cancel()
		if err := t.leave(ctx); err != nil {
			return fmt.Errorf("cannot delete the consumer %q of stream %q: %w", t.consumer, name, err)
		}
		return nil
	}, nil
}

// checkVersion returns an error of a server that lacks XAUTOCLAIM: all other commands are as old or older.
func (s *subscriber) checkVersion(ctx context.Context, name string) error {
	_, _, err := s.client.XAutoClaimJustID(ctx, &redis.XAutoClaimArgs{
		Stream: name, Group: s.params.Group, Consumer: s.consumer, MinIdle: 1000 * anyIdle, Start: firstCursor, Count: 1,
	}).Result()
	if err != nil {
		return fmt.Errorf("XAUTOCLAIM failed; Redis 6.2 or later is needed: %w", err)
	}
	return nil
}

// Close implements message.Subscriber. It gives back the messages in flight.
func (s *subscriber) Close() error { return s.readers.Close() }

// String returns its name, for logs.
func (*subscriber) String() string { return "redisretry.Subscriber" }
