package amqp3_test

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config/amqp3"
	"github.com/tieredretry/watermill-retry/retry"
)

// A queue that a topic exchange feeds, which only v3 has a configuration for. A retry comes back to the queue, not to the
// exchange.
func ExampleNewBuilder() {
	rabbit, err := amqp3.NewBuilder(amqp3.Config{
		AMQP:   amqp.NewDurableTopicConfig("amqp://guest:guest@localhost:5672/", "shop", "eu_orders"),
		Policy: retry.Policy{Schedule: backoff.Constant(10*time.Second, 3)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(rabbit.Topology("orders.eu.*").DeadLetterQueue())
	// Output:
	// eu_orders.dead
}

// The dead letters of one consumer group of a fan-out.
func ExampleDeadLetterSubscriberConfig() {
	app := amqp.NewDurablePubSubConfig("amqp://guest:guest@localhost:5672/", nil) // each handler has a Group
	reader, err := amqp3.DeadLetterSubscriberConfig(app, "billing")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(reader.Queue.GenerateName("orders"))
	// Output:
	// orders_billing.dead
}

// With a Group, each handler has a queue of its own on one topic exchange.
func ExampleConnect() {
	rabbit, err := amqp3.Connect(amqp3.Config{
		AMQP:   amqp.NewDurableTopicConfig("amqp://guest:guest@localhost:5672/", "shop", ""),
		Policy: retry.Policy{Schedule: backoff.Constant(10*time.Second, 3)},
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	router := message.NewDefaultRouter(nil)
	process := func(*message.Message) error { return nil }
	rabbit.AddConsumerHandler(router, "billing", "orders.eu", process, retry.Options{Group: "billing"})
	rabbit.AddConsumerHandler(router, "mailing", "orders.eu", process, retry.Options{Group: "mailing"})
}
