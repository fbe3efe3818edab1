package backends

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/letters/relayletters"
	"github.com/tieredretry/watermill-retry/relay"
)

// Redis is Redis Streams, at host:port. Do not set Maxlens or DefaultMaxlen of the publisher for the topics of the
// retries: Redis then deletes messages that still wait.
func Redis(address string, logger watermill.LoggerAdapter) Backend {
	// A publisher or subscriber closes its client. Each subscription needs a connection while it waits for messages.
	client := func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: address, PoolSize: 100}) }
	subscriber := func(group string, limit time.Duration) (message.Subscriber, error) {
		return redisstream.NewSubscriber(redisstream.SubscriberConfig{
			Client: client(), ConsumerGroup: group, DisableIndefiniteInitialBlock: true,
			// After this time another consumer takes over a message that is not acknowledged.
			MaxIdleTime: limit, ClaimInterval: min(limit/2, time.Second),
		}, logger)
	}
	publisher := func() (message.Publisher, error) {
		return redisstream.NewPublisher(redisstream.PublisherConfig{Client: client()}, logger)
	}
	retries := parts{
		publisher: publisher,
		subscriber: func(app App, group string) (message.Subscriber, error) {
			return subscriber(group, app.handlerLimit())
		},
		tier: func(_ relay.SubscriberParams, limit time.Duration) (message.Subscriber, error) {
			return subscriber("retry-relay", limit)
		},
		topics: func(app App) (relayletters.Reader, error) { return redisLetters{client(), app.lease()}, nil },
	}
	return Backend{
		Name: "redis", Publisher: publisher, Letters: retries.letters,
		Connect: func(app App) (*Connection, error) { return retries.connect(app, logger) },
		Remove:  func(prefix string, topics ...string) error { return removeRedis(client(), prefix, topics) },
	}
}

func removeRedis(client redis.UniversalClient, prefix string, topics []string) error {
	defer func() { _ = client.Close() }()
	ctx, streams := context.Background(), topics
	found := client.Scan(ctx, 0, prefix+".*", 0).Iterator()
	for found.Next(ctx) {
		streams = append(streams, found.Val())
	}
	if err := found.Err(); err != nil {
		return err
	}
	return client.Del(ctx, streams...).Err()
}
