package config_test

import (
	"cmp"
	"context"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

func bill(msg *message.Message) error {
	return nil // or what went wrong
}

func Example() {
	logger := watermill.NewSlogLogger(slog.Default())
	uri := cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@localhost:5672/")

	// A failed order waits 1s, 5s, 25s, 125s on queues of the broker, then goes to the dead-letter queue orders.dead.
	rabbit, err := config.NewBuilder(config.BuilderConfig{
		AMQP:     amqp.NewDurableQueueConfig(uri),
		Schedule: backoff.Exponential(time.Second, 5, 4),
	})
	check(err)
	subscriber, err := amqp.NewSubscriber(rabbit.SubscriberConfig(), logger)
	check(err)
	failures, err := rabbit.NewPublisher(logger)
	check(err)
	retry, err := retrymw.NewTieredRetry(rabbit.TieredRetryConfig(failures), logger)
	check(err)

	router := message.NewDefaultRouter(logger)
	router.AddConsumerHandler("billing", "orders", subscriber, bill).
		AddMiddleware(retry.Middleware, middleware.Timeout(time.Minute))

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	check(router.Run(ctx))
	check(failures.Close()) // after the router has closed
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
