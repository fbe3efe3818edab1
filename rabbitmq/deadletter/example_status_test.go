package deadletter_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// The management API finds the work queues.
func ExampleStore_Status() {
	store, err := deadletter.Open(deadletter.Config{
		URI: "amqp://guest:guest@localhost:5672/", Management: "http://guest:guest@localhost:15672",
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	status, err := store.Status(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, w := range status.Queues {
		fmt.Println(w.Name, "has", w.Messages, "messages and", w.Dead.Messages, "dead letters")
		for _, tier := range w.Tiers {
			if tier.Messages > 0 {
				fmt.Println("  wait for", tier.Delay, "at most:", tier.Messages)
			}
		}
	}
}

// What waits for an hour comes back now, and the tier is removed.
func ExampleStore_Drain() {
	store, err := deadletter.Open(deadletter.Config{URI: "amqp://guest:guest@localhost:5672/", Management: "http://guest:guest@localhost:15672"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	summary, err := store.Drain(context.Background(), "orders.retry.1h", letters.Redrive{Rate: 100})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(summary.Done, "messages are back")
	now := topology.New(topology.Config{Tiers: backoff.Exponential(time.Second, 5, 3).Tiers()}, topology.Queue{Name: "orders", Durable: true})
	pruned, err := store.Prune(context.Background(), deadletter.Prune{Current: []topology.Topology{now}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("removed:", pruned.Removed, "left:", pruned.Left)
}
