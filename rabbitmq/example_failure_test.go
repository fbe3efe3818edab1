package rabbitmq_test

import (
	"cmp"
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

func bill(msg *message.Message) error {
	return errors.New("the bank is down")
}

// publish sends one order, as another service does.
func publish(uri string) {
	orders := amqp.NewDurableQueueConfig(uri)
	orders.Publish.ConfirmDelivery = true
	publisher, err := amqp.NewPublisher(orders, watermill.NopLogger{})
	check(err)
	check(publisher.Publish("orders", message.NewMessage("order-1", []byte(`{"ID": "order-1"}`))))
	check(publisher.Close())
}

// A message that fails always: it waits 1s, then 2s, and becomes a dead letter.
func Example_failure() {
	logger := watermill.NewSlogLogger(slog.Default())
	uri := cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@localhost:5672/")

	rabbit, err := config.NewBuilder(config.BuilderConfig{
		AMQP:     amqp.NewDurableQueueConfig(uri),
		Schedule: backoff.Schedule{time.Second, 2 * time.Second},
	})
	check(err)
	subscriber, err := amqp.NewSubscriber(rabbit.SubscriberConfig(), logger)
	check(err)
	failures, err := rabbit.NewPublisher(logger)
	check(err)
	retry, err := retrymw.NewTieredRetry(rabbit.TieredRetryConfig(failures), logger)
	check(err)

	router := message.NewDefaultRouter(logger)
	router.AddConsumerHandler("billing", "orders", subscriber, bill).AddMiddleware(retry.Middleware)

	go func() {
		<-router.Running() // the queue exists
		publish(uri)
	}()
	check(router.Run(context.Background()))
	check(failures.Close()) // after the router has closed
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
