package config_test

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

// Two consumer groups of one fan-out in one app.
func Example_groups() {
	logger := watermill.NopLogger{}
	uri := "amqp://guest:guest@localhost:5672/"
	ship := bill
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	router := message.NewDefaultRouter(logger)
	var publishers []message.Publisher
	for group, handler := range map[string]message.NoPublishHandlerFunc{"billing": bill, "shipping": ship} {
		rabbit, err := config.NewBuilder(config.BuilderConfig{
			AMQP:     amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(group)),
			Schedule: backoff.Exponential(time.Second, 5, 4),
		})
		check(err)
		subscriber, err := amqp.NewSubscriber(rabbit.SubscriberConfig(), logger)
		check(err)
		failures, err := rabbit.NewPublisher(logger)
		check(err)
		publishers = append(publishers, failures)
		retry, err := retrymw.NewTieredRetry(rabbit.TieredRetryConfig(failures), logger)
		check(err)
		router.AddConsumerHandler(group, "orders", subscriber, handler).AddMiddleware(retry.Middleware)
	}
	check(router.Run(ctx))
	for _, failures := range publishers {
		check(failures.Close()) // after the router has closed
	}
}
