package config_test

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

// All handlers of an app share two connections. Package rabbitmq has examples of every method.
func ExampleConnect() {
	logger := watermill.NopLogger{}
	rabbit, err := config.Connect(config.Config{
		AMQP:   amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
	}, logger)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rabbit.Close() // after the router
	router := message.NewDefaultRouter(logger)
	rabbit.AddConsumerHandler(router, "billing", "orders", bill)
}
