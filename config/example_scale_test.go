package config_test

import (
	"log"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

// Hundreds of quiet work queues share their tiers. A busy one has tiers of its own.
func Example_tierGroup() {
	policy := retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4), TierGroup: "shop"}
	rabbit, err := config.Connect(config.Config{
		AMQP:   amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Policy: policy,
	}, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		log.Fatal(err)
	}
	rabbit.AddConsumerHandler(router, "mail", "mails", send)
	busy := policy
	busy.TierGroup = ""
	rabbit.AddConsumerHandler(router, "billing", "orders", bill, retry.Options{Policy: &busy})
}
