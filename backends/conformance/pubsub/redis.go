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
)

// redisStreams is package redisretry, at host:port.
type redisStreams struct {
	module[redisretry.Config]
	address string
}

func redisRetry(address string, logger watermill.LoggerAdapter) Backend {
	r := redisStreams{address: address}
	config := func(app App) (redisretry.Config, func() error, error) {
		client := r.client()
		return redisretry.Config{
			Client: client, Group: app.Group, Policy: app.Policy, Prefix: app.Prefix, Lease: app.Lease,
		}, sync.OnceValue(client.Close), nil
	}
	r.module = module[redisretry.Config]{logger, config, redisretry.Connect, redisretry.Letters}
	return r
}

func (r redisStreams) client() *redis.Client { return redis.NewClient(&redis.Options{Addr: r.address}) }

// Publisher implements Backend.
func (r redisStreams) Publisher() (message.Publisher, error) {
	return redisstream.NewPublisher(redisstream.PublisherConfig{Client: r.client()}, r.logger)
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
