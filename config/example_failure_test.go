package config_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

// A message that fails always: it waits 1s, and becomes a dead letter at its second failure.
func Example_failure() {
	logger := watermill.NewSlogLogger(slog.Default())
	uri := cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@localhost:5672/")

	rabbit, err := config.Connect(config.Config{
		AMQP:   amqp.NewDurableQueueConfig(uri),
		Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}},
	}, logger)
	check(err)
	defer rabbit.Close() // after router.Run has returned

	refuse := func(*message.Message) error { return errors.New("the bank is down") }
	router := message.NewDefaultRouter(logger)
	rabbit.AddConsumerHandler(router, "billing", "orders", refuse)

	go func() {
		<-router.Running() // the queue exists
		check(rabbit.Publisher().Publish("orders", message.NewMessage("order-1", []byte(`{"ID": "order-1"}`))))
	}()
	check(router.Run(context.Background()))
}
