package config_test

import (
	"context"
	"log"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

// An app that wires the parts by itself, with watermill-amqp's subscriber.
func Example_parts() {
	logger := watermill.NewSlogLogger(slog.Default())
	uri := "amqp://guest:guest@localhost:5672/"

	builder, err := config.NewBuilder(config.Config{
		AMQP:   amqp.NewDurableQueueConfig(uri),
		Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
	})
	check(err)
	subscriber, err := amqp.NewSubscriber(builder.SubscriberConfig(), logger)
	check(err)
	tiered, err := builder.NewTieredRetry(logger)
	check(err)

	router := message.NewDefaultRouter(logger)
	router.AddConsumerHandler("billing", "orders", subscriber, bill).
		AddMiddleware(tiered, middleware.Timeout(time.Minute))
	check(router.Run(context.Background()))
	check(builder.Close()) // after the router has closed
}

// Each consumer group has its own parts.
func Example_partsGroups() {
	logger := watermill.NopLogger{}
	uri := "amqp://guest:guest@localhost:5672/"
	ship := bill

	router := message.NewDefaultRouter(logger)
	var builders []*config.Builder
	for group, handler := range map[string]message.NoPublishHandlerFunc{"billing": bill, "shipping": ship} {
		builder, err := config.NewBuilder(config.Config{
			AMQP:   amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(group)),
			Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
		})
		check(err)
		subscriber, err := amqp.NewSubscriber(builder.SubscriberConfig(), logger)
		check(err)
		tiered, err := builder.NewTieredRetry(logger)
		check(err)
		builders = append(builders, builder)
		router.AddConsumerHandler(group, "orders", subscriber, handler).AddMiddleware(tiered)
	}
	check(router.Run(context.Background()))
	for _, builder := range builders {
		check(builder.Close()) // after the router has closed
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
