package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

var orders = deadletter.Wanted{
	Topology: topology.Config{Tiers: backoff.Exponential(time.Second, 5, 4).Tiers()},
	Queue:    topology.Queue{Name: "orders", Durable: true},
}

// A check in CI fails on drift, and a deployment declares what is missing.
func ExampleStore_Compare() {
	store, err := deadletter.Open(deadletter.Config{URI: "amqp://guest:guest@localhost:5672/", Management: "http://guest:guest@localhost:15672"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	report, err := store.Compare(context.Background(), orders)
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range report.Differences {
		fmt.Println(d)
	}
	if !report.Drifted() {
		return
	}
	if _, err := store.Apply(context.Background(), orders); errors.Is(err, deadletter.ErrConflict) {
		log.Fatal("the topology has drifted, and RabbitMQ cannot change what exists")
	}
}

func ExampleDifference() {
	fmt.Println(deadletter.Difference{
		Kind: deadletter.Conflict, Object: "queue", Name: "orders.dead", Argument: "x-max-length", Have: "none", Want: "1000",
		Reason: "RabbitMQ cannot change the arguments of an existing object", Advice: "set it by a policy",
	})
	// Output:
	// queue orders.dead: x-max-length is none, wanted is 1000: RabbitMQ cannot change the arguments of an existing object: set it by a policy
}
