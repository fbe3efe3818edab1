package natsretry_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/tieredretry/watermill-retry/backends/natsretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

func ExampleConnect() {
	ctx, logger, router := context.Background(), watermill.NopLogger{}, message.NewDefaultRouter(nil)
	bill := func(*message.Message) error { return nil }

	// A connection must outlast every outage.
	conn, err := nats.Connect("nats://localhost:4222", nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true))
	check(err)
	defer conn.Close()
	retries, err := natsretry.Connect(natsretry.Config{
		Conn: conn, Group: "billing",
		Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
	}, logger)
	check(err)
	retries.AddConsumerHandler(router, "bill", "orders", bill)

	check(router.Run(ctx))
	check(retries.Close()) // after the router
}

func ExampleLetters() {
	ctx := context.Background()
	conn, err := nats.Connect("nats://localhost:4222")
	check(err)
	defer conn.Close()

	dead, err := natsretry.Letters(natsretry.Config{Conn: conn}, nil)
	check(err)
	for letter, err := range dead.Browse(ctx, "retry.dead.billing.orders", letters.Filter{}) {
		check(err)
		fmt.Println(letter.ID, letter.Record.Reason)
	}
	check(dead.Close())
}

func ExampleConfig_Validate() {
	fmt.Println(natsretry.Config{Conn: new(nats.Conn), Policy: retry.Policy{
		Schedule: backoff.Constant(time.Second, 3),
	}, Lease: time.Millisecond}.Validate())
	// Output:
	// Lease is 1ms: it must be 0 (the default, 15s) or at least 1s
	// Group is empty: set it to the name of the service
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
