package backends_test

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/backends"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/relay"
)

// The backend is one line of the app.
func Example() {
	logger, router := watermill.NopLogger{}, message.NewDefaultRouter(nil)
	bill := func(*message.Message) error { return nil }

	backend := backends.Redis("localhost:6379", logger) // or another backend of this package
	retries, err := backend.Connect(backends.App{Group: "billing", Prefix: "retry", Schedule: backoff.Exponential(time.Second, 5, 4)})
	check(err)
	retries.AddConsumerHandler(router, "billing", "orders", bill)
}

// After an outage: look at the dead letters of a handler, and bring some of them back.
func ExampleBackend() {
	ctx, logger := context.Background(), watermill.NopLogger{}

	backend := backends.Redis("localhost:6379", logger) // or another backend of this package
	app := backends.App{Prefix: "retry"}
	dead, err := backend.Letters(app)
	check(err)
	topic := backend.QueueOf(app, "billing", "orders") // retry.dead.billing
	for letter, err := range dead.Browse(ctx, topic, letters.Filter{}) {
		check(err)
		fmt.Println(letter.ID, letter.Record.Reason)
	}
	summary, err := dead.Redrive(ctx, topic, letters.Redrive{
		Filter: letters.Filter{ErrorType: "*net.OpError"}, Rate: 50, Canary: 10,
	})
	fmt.Println(summary) // also with an error
	check(err)
	check(dead.Close())
}

// The subscribers that the relay needs on Redis Streams, without this package.
func ExampleRedis() {
	logger, address := watermill.NopLogger{}, "localhost:6379"
	var config relay.Config

	config.NewSubscriber = func(p relay.SubscriberParams) (message.Subscriber, error) {
		group, limit := cmp.Or(p.Group, "billing"), time.Minute // of a handler
		if p.Tier > 0 {
			group, limit = "retry-relay", 2*p.Hop+10*time.Second
		}
		return redisstream.NewSubscriber(redisstream.SubscriberConfig{
			Client:        redis.NewClient(&redis.Options{Addr: address}),
			ConsumerGroup: group, DisableIndefiniteInitialBlock: true,
			MaxIdleTime: limit, ClaimInterval: time.Second,
		}, logger)
	}
	_ = config
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
