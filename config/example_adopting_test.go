package config_test

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

// An app in production gets the library's subscriber first, and the retry middleware in a later deployment, in the place
// of Watermill's Retry and PoisonQueue.
func ExampleConnect_adopting() {
	app := amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/")
	logger := watermill.NopLogger{}
	_ = func(router *message.Router, publisher message.Publisher) { // today
		subscriber, err := amqp.NewSubscriber(app, logger)
		check(err)
		poison, err := middleware.PoisonQueue(publisher, "orders.poison")
		check(err)
		retries := middleware.Retry{MaxRetries: 3, InitialInterval: time.Second, MaxInterval: time.Minute, Multiplier: 5}
		router.AddMiddleware(poison, retries.Middleware)
		router.AddConsumerHandler("billing", "orders", subscriber, bill)
	}
	connect := func() retry.Connection { // both steps
		rabbit, err := config.Connect(config.Config{
			AMQP:   app, // as before
			Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 3)},
		}, logger)
		check(err)
		return rabbit
	}
	_ = func(router *message.Router, rabbit retry.Connection) { // step 1
		one := retry.Options{Concurrency: 1} // one message in flight, in the order of the queue
		subscriber, err := rabbit.Subscriber("billing", one)
		check(err)
		router.AddConsumerHandler("billing", "orders", subscriber, bill)
	}
	_ = func(router *message.Router, rabbit retry.Connection) { // step 2
		one := retry.Options{Concurrency: 1}
		rabbit.AddConsumerHandler(router, "billing", "orders", bill, one)
	}
	_ = connect
}
