package config_test

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// An app in production gets the library's subscriber first, and the retry middleware in a later deployment.
func ExampleConnect_adopting() {
	_ = func(rabbit retry.Connection, router *message.Router) error {
		one := retry.Options{Concurrency: 1} // one message in flight, in the order of the queue
		subscriber, err := rabbit.Subscriber("billing", one)
		if err != nil {
			return err
		}
		router.AddConsumerHandler("billing", "orders", subscriber, bill)
		return nil
	}
	_ = func(rabbit retry.Connection, router *message.Router) {
		one := retry.Options{Concurrency: 1}
		rabbit.AddConsumerHandler(router, "billing", "orders", bill, one)
	}
}
