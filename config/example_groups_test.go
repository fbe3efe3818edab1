package config_test

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

// Several consumer groups of one fan-out, over two connections. Ten groups need ten lines in the map, and nothing else.
func Example_groups() {
	check(runGroups())
}

func runGroups() error {
	logger := watermill.NopLogger{}
	uri := "amqp://guest:guest@localhost:5672/"
	ship, mail := bill, bill

	rabbit, err := config.Connect(config.Config{
		AMQP:   amqp.NewDurablePubSubConfig(uri, nil), // each handler has a Group, which names its queue
		Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
	}, logger)
	if err != nil {
		return err
	}
	defer rabbit.Close() // after router.Run has returned

	router := message.NewDefaultRouter(logger)
	for group, handler := range map[string]message.NoPublishHandlerFunc{"billing": bill, "shipping": ship, "mailing": mail} {
		rabbit.AddConsumerHandler(router, group, "orders", handler, retry.Options{Group: group})
	}
	return router.Run(context.Background())
}
