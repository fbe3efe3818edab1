package retry_test

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// A program that consumes dead letters, and gives each one to another queue with all of its retries again.
func Example_fresh() {
	ctx, logger := context.Background(), watermill.NopLogger{}
	app := amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/")

	reader, err := config.DeadLetterSubscriberConfig(app, "")
	check(err)
	subscriber, err := amqp.NewSubscriber(reader, logger)
	check(err)
	rabbit, err := config.Connect(config.Config{AMQP: app, Policy: retry.Policy{Schedule: backoff.Constant(time.Minute, 3)}}, logger)
	check(err)
	defer rabbit.Close()
	dead, err := subscriber.Subscribe(ctx, "orders")
	check(err)

	for letter := range dead {
		if err := rabbit.Publisher().Publish("orders_by_hand", letters.Fresh(letter)); err != nil {
			letter.Nack()
			continue
		}
		letter.Ack()
	}
}
