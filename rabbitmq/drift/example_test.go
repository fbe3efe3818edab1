package drift_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/drift"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

var orders = drift.Wanted{
	Topology: topology.Config{Tiers: backoff.Exponential(time.Second, 5, 4).Tiers()},
	Queue:    topology.Queue{Name: "orders", Durable: true},
}

// A check in CI fails on drift.
func ExampleCompare() {
	config := drift.Config{URI: "amqp://guest:guest@localhost:5672/", Management: "http://guest:guest@localhost:15672"}
	report, err := drift.Compare(context.Background(), config, orders)
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range report.Differences {
		fmt.Println(d)
	}
	if report.Drifted() {
		log.Fatal("the topology has drifted")
	}
}

// A deployment declares what is missing.
func ExampleApply() {
	report, err := drift.Apply(context.Background(), drift.Config{URI: "amqp://guest:guest@localhost:5672/"}, orders)
	if errors.Is(err, drift.ErrConflict) {
		for _, d := range report.Of(drift.Conflict) {
			fmt.Println(d)
		}
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(report.Of(drift.Create)), "objects were missing")
}

func ExampleDifference() {
	fmt.Println(drift.Difference{
		Kind: drift.Conflict, Object: "queue", Name: "orders.dead", Argument: "x-max-length", Have: "none", Want: "1000",
		Reason: "RabbitMQ cannot change the arguments of an existing object", Advice: "set it by a policy",
	})
	// Output:
	// queue orders.dead: x-max-length is none, wanted is 1000: RabbitMQ cannot change the arguments of an existing object: set it by a policy
}
