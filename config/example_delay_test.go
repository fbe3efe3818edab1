package config_test

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

// A reminder that is published now and handled in ten days. The broker needs no plugin.
func Example_delayedMessage() {
	check(runReminders())
}

func runReminders() error {
	logger := watermill.NopLogger{}
	rabbit, err := config.Connect(config.Config{
		AMQP:   amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4), TierGroup: "shop"},
		// with its tiers a delay of whole seconds up to 12 days takes at most 12 publishes
	}, logger)
	if err != nil {
		return err
	}
	defer rabbit.Close() // after router.Run has returned

	router := message.NewDefaultRouter(logger)
	rabbit.AddConsumerHandler(router, "reminding", "reminders", func(msg *message.Message) error { return nil })
	go func() {
		<-router.Running() // the queue exists
		msg := message.NewMessage(watermill.NewUUID(), []byte(`{"Order": "order-1"}`))
		delay.Message(msg, delay.For(10*24*time.Hour))
		check(rabbit.Publisher().Publish("reminders", msg))
	}()
	return router.Run(context.Background())
}
