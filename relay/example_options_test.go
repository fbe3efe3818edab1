package relay_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/tieredretry/watermill-retry/retry"
)

// addHandlers adds the handlers of the app on every backend.
func addHandlers(router *message.Router, retries retry.Connection, billing retry.Options) {
	retries.AddConsumerHandler(router, "billing", "orders", bill, billing)
}

var billed = make(chan string)

func bill(msg *message.Message) error {
	billed <- msg.UUID
	return nil
}

// One function adds the handlers on RabbitMQ and on gochannel. The options that only RabbitMQ has are its parameter.
func ExampleConnect_options() {
	onRabbitMQ := false
	customerOf := func(msg *message.Message) string { return msg.Metadata.Get("customer") }
	var retries retry.Connection = connectPubSub(gochannel.NewGoChannel(gochannel.Config{}, nil)) // or that of config.Connect
	router := message.NewDefaultRouter(nil)

	var billing retry.Options // what every backend has
	if onRabbitMQ {
		billing.Concurrency, billing.Order.Key = 64, customerOf
	}
	addHandlers(router, retries, billing)

	go func() { check(router.Run(context.Background())) }()
	<-router.Running()
	check(retries.Publisher().Publish("orders", message.NewMessage("order-1", nil)))
	fmt.Println(<-billed)
	check(router.Close())
	check(retries.Close())
	// Output:
	// order-1
}
