package pubsub

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/backends/redisretry"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// redisStreams is package redisretry, at host:port.
type redisStreams struct {
	address string
	logger  watermill.LoggerAdapter
}

func redisRetry(address string, logger watermill.LoggerAdapter) Backend {
	return redisStreams{address, logger}
}

func (r redisStreams) client() *redis.Client { return redis.NewClient(&redis.Options{Addr: r.address}) }

// Publisher implements Backend.
func (r redisStreams) Publisher() (message.Publisher, error) {
	return redisstream.NewPublisher(redisstream.PublisherConfig{Client: r.client()}, r.logger)
}

func (r redisStreams) config(app App) redisretry.Config {
	return redisretry.Config{
		Client: r.client(), Group: app.Group, Policy: app.Policy, Prefix: app.Prefix, Lease: app.Lease,
	}
}

// Connect implements Backend.
func (r redisStreams) Connect(app App) (retry.Connection, error) {
	config := r.config(app)
	connection, err := redisretry.Connect(config, r.logger)
	if err != nil {
		return nil, errors.Join(err, config.Client.Close())
	}
	return closing{connection, sync.OnceValue(config.Client.Close)}, nil
}

// Letters implements Backend.
func (r redisStreams) Letters(app App) (letters.Store, error) {
	config := r.config(app)
	store, err := redisretry.Letters(config, r.logger)
	if err != nil {
		return nil, errors.Join(err, config.Client.Close())
	}
	return closingStore{store, sync.OnceValue(config.Client.Close)}, nil
}

// DeadTopic implements Backend.
func (r redisStreams) DeadTopic(app App, _, topic string) string {
	return relaytopic.Names{Prefix: app.Prefix}.Dead(relaytopic.Key(app.Group, topic))
}

// Left implements Backend. It counts the members of sorted sets and the fields of hashes, whose keys begin with the
// prefix.
func (r redisStreams) Left(ctx context.Context, app App, _ []string) (left int, err error) {
	client := r.client()
	defer func() { err = errors.Join(err, client.Close()) }()
	keys := client.Scan(ctx, 0, relaytopic.Names{Prefix: app.Prefix}.Return("*"), 1000).Iterator()
	for keys.Next(ctx) {
		var count *redis.IntCmd
		switch key := keys.Val(); {
		case strings.HasSuffix(key, ":due"):
			count = client.ZCard(ctx, key)
		default:
			count = client.HLen(ctx, key)
		}
		if count.Err() != nil {
			return left, count.Err()
		}
		left += int(count.Val())
	}
	return left, keys.Err()
}
