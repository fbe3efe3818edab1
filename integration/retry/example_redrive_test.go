package retry_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// All dead letters of a work queue go back, ten of them first.
func Example_redrive() {
	ctx, logger := context.Background(), watermill.NopLogger{}
	uri := "amqp://guest:guest@localhost:5672/"

	store, err := deadletter.Open(deadletter.Config{URI: uri}, logger)
	check(err)
	defer store.Close()
	summary, err := store.Redrive(ctx, deadletter.QueueOf("orders"), letters.Redrive{Canary: 10})
	log.Println(summary)
	check(err)
}

// An app that shows why its messages died, and brings back those of one cause.
func Example_causes() {
	ctx := context.Background()
	store, err := deadletter.Open(deadletter.Config{URI: "amqp://guest:guest@localhost:5672/"}, nil)
	check(err)
	defer store.Close()

	queue := deadletter.QueueOf("orders") // orders.dead
	var groups letters.Groups
	for letter, err := range store.Browse(ctx, queue, letters.Filter{NewerThan: time.Hour}) {
		check(err)
		groups.Add(letter)
	}
	for _, group := range groups.Sorted() { // the largest first
		fmt.Println(group.Count, group.DeadReason, group.ErrorType, group.Reason)
	}

	summary, err := store.Redrive(ctx, queue, letters.Redrive{
		Filter:    letters.Filter{ErrorType: "syscall.Errno"},
		Rate:      50,   // a second
		Canary:    10,   // go on only if none of the first ten dies again
		MaxRedead: 0.05, // stop when 5% have died again
		By:        "ops@example.com",
		Progress: func(p letters.Progress) {
			log.Printf("%s: %d of %d, %.0f/s, %v left", p.Phase, p.Done, p.Total-p.Other, p.PerSecond(), p.Left())
		},
	})
	log.Println(summary) // it adds up after an error, too
	check(err)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
