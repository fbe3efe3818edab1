package redisretry_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/backends/redisretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/page"
	"github.com/tieredretry/watermill-retry/retry"
)

// A failed order waits 1s, 5s, 25s, 125s on the server, then goes to the dead-letter topic retry.dead.billing.orders.
func ExampleConnect() {
	logger, router := watermill.NopLogger{}, message.NewDefaultRouter(nil)
	bill := func(*message.Message) error { return nil }

	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	retries, err := redisretry.Connect(redisretry.Config{
		Client: client,
		Group:  "billing",
		Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
	}, logger)
	check(err)
	retries.AddConsumerHandler(router, "bill", "orders", bill)

	// after router.Run has returned
	check(retries.Close())
	check(client.Close())
}

// After an outage: look at the dead letters of a topic, and bring some of them back.
func ExampleLetters() {
	ctx, topic := context.Background(), "retry.dead.billing.orders"

	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	dead, err := redisretry.Letters(redisretry.Config{Client: client}, nil)
	check(err)
	for letter, err := range dead.Browse(ctx, topic, letters.Filter{}) {
		check(err)
		fmt.Println(letter.ID, letter.Record.Reason)
	}
	summary, err := dead.Redrive(ctx, topic, letters.Redrive{
		Filter: letters.Filter{ErrorType: "syscall.Errno"}, Rate: 50, Canary: 10,
	})
	fmt.Println(summary) // also with an error
	check(err)
	check(dead.Close())
	check(client.Close())
}

// The page for operators, in an admin server behind a login, with what another broker has.
func ExampleLetters_page() {
	login := func(h http.Handler) http.Handler { return h }
	another := func() *page.Page { return nil } // in the same way

	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	dead, err := redisretry.Letters(redisretry.Config{Client: client}, nil)
	check(err)
	orders, err := page.New(page.Config{Store: dead, AllowWrite: true})
	check(err)
	all, err := page.Over(map[string]*page.Page{"orders": orders, "mails": another()})
	check(err)
	defer all.Close() // before the stores
	http.Handle("/admin/dead/", login(all))
	check(http.ListenAndServe("127.0.0.1:8081", nil))
}

func ExampleConfig_Validate() {
	fmt.Println(redisretry.Config{Lease: time.Millisecond}.Validate())
	// Output:
	// Client is nil: set it to a client of go-redis, such as redis.NewClient
	// Lease is 1ms: it must be 0 (the default, 15s) or at least 1s
	// Group is empty: set it to the name of the service; it is the consumer group of the handlers
	// Policy.Schedule: backoff: no retries: want 1 to 1000, for example backoff.Exponential(time.Second, 5, 4)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
