package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

const uri = "amqp://guest:guest@localhost:5672/"

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleOpen() {
	store, err := deadletter.Open(deadletter.Config{URI: uri}, watermill.NewStdLogger(false, false))
	check(err)
	defer store.Close()
	var _ letters.Store = store // the same interface as on the other backends
}

func ExampleQueueOf() {
	fmt.Println(deadletter.QueueOf("orders"), deadletter.QueueOf("orders_billing"))
	// Output:
	// orders.dead orders_billing.dead
}

// What is dead, and why: the letters of each cause.
func ExampleStore_Browse() {
	ctx := context.Background()
	store, err := deadletter.Open(deadletter.Config{URI: uri}, nil)
	check(err)
	defer store.Close()
	var groups letters.Groups
	for letter, err := range store.Browse(ctx, deadletter.QueueOf("orders"), letters.Filter{NewerThan: 24 * time.Hour}) {
		check(err)
		groups.Add(letter)
	}
	for _, group := range groups.Sorted() {
		fmt.Println(group.Count, group.DeadReason, group.Reason, group.First, group.Last)
	}
}

// Ten letters go first. If one of them dies again, the others stay. Ctrl-C ends the redrive, and the summary adds up.
func ExampleStore_Redrive() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	store, err := deadletter.Open(deadletter.Config{URI: uri}, nil)
	check(err)
	defer store.Close()
	summary, err := store.Redrive(ctx, deadletter.QueueOf("orders"), letters.Redrive{
		Filter:    letters.Filter{DeadReason: "exhausted"},
		Canary:    10,
		Rate:      50, // a second
		MaxRedead: 0.05,
		Progress:  func(p letters.Progress) { log.Println(p.Phase, p.Done, "of", p.Total-p.Other) },
	})
	switch {
	case errors.Is(err, letters.ErrRedead):
		log.Println("repair the cause first:", err)
	case errors.Is(err, letters.ErrBusy):
		log.Println("another redrive runs:", err)
	case err != nil:
		log.Println(err)
	}
	log.Println(summary)
}

// The orphans go home when their work queue is there again.
func ExampleStore_Orphans() {
	ctx := context.Background()
	store, err := deadletter.Open(deadletter.Config{URI: uri}, nil)
	check(err)
	defer store.Close()
	summary, err := store.Redrive(ctx, store.Orphans(), letters.Redrive{})
	log.Println(summary, err) // the error names each queue that is still gone
}

// The letters are in the file, and on the disk, before they are removed.
func ExampleStore_Discard() {
	ctx := context.Background()
	store, err := deadletter.Open(deadletter.Config{URI: uri}, nil)
	check(err)
	defer store.Close()
	file, err := os.Create("orders.jsonl")
	check(err)
	defer file.Close()
	summary, err := store.Discard(ctx, deadletter.QueueOf("orders"), letters.Discard{
		Filter: letters.Filter{OlderThan: 30 * 24 * time.Hour},
		Export: file,
	})
	log.Println(summary, err)
}

func ExampleStore_Export() {
	ctx := context.Background()
	store, err := deadletter.Open(deadletter.Config{URI: uri}, nil)
	check(err)
	defer store.Close()
	file, err := os.Create("orders.jsonl")
	check(err)
	defer file.Close()
	n, err := store.Export(ctx, deadletter.QueueOf("orders"), letters.Filter{}, file)
	log.Println(n, "letters", err)
}

// Each letter goes back to the queue that it was exported from.
func ExampleStore_Import() {
	ctx := context.Background()
	store, err := deadletter.Open(deadletter.Config{URI: uri}, nil)
	check(err)
	defer store.Close()
	file, err := os.Open("orders.jsonl")
	check(err)
	defer file.Close()
	summary, err := store.Import(ctx, file, letters.Redrive{})
	log.Println(summary, err)
}

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
