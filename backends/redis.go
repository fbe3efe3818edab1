package backends

import (
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
	return relayed{pubSub: redisStreams{address, logger}, logger: logger}
}

type redisStreams struct {
	address string
	logger  watermill.LoggerAdapter
}

// client connects to the server. A publisher or subscriber closes its client. Each subscription needs a connection
// while it waits for messages.
func (r redisStreams) client() redis.UniversalClient {
	return redis.NewClient(&redis.Options{Addr: r.address, PoolSize: 100})
}

func (r redisStreams) publisher(App) (message.Publisher, error) {
	return redisstream.NewPublisher(redisstream.PublisherConfig{Client: r.client()}, r.logger)
}

func (r redisStreams) subscriber(app App, p relay.SubscriberParams) (message.Subscriber, error) {
	limit := app.limit(p)
	return redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client: r.client(), ConsumerGroup: app.group(p), DisableIndefiniteInitialBlock: true,
		// After this time another consumer takes over a message that is not acknowledged.
		MaxIdleTime: limit, ClaimInterval: min(limit/2, time.Second),
	}, r.logger)
}

func (r redisStreams) reader(app App) (relayletters.Reader, error) {
	return redisLetters{r.client(), app.lease()}, nil
}
