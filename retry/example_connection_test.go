package retry_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// addHandlers is a function of an app. It runs on every backend.
func addHandlers(router *message.Router, retries retry.Connection) {
	retries.AddConsumerHandler(router, "billing", "orders", func(*message.Message) error { return nil })
	retries.AddConsumerHandler(router, "mail", "mails", func(*message.Message) error { return nil },
		retry.Options{Policy: &retry.Policy{Schedule: backoff.Constant(time.Minute, 10)}})
}

func ExampleConnection() {
	var retries retry.Connection // of config.Connect, relay.Connect or retrytest.New
	start := func() error {
		defer func() { _ = retries.Close() }() // after the router
		router := message.NewDefaultRouter(nil)
		addHandlers(router, retries)
		return router.Run(context.Background())
	}
	_ = start
}

// deadLetters is an observer that counts dead letters by their reason. Package observe has those for Prometheus and OpenTelemetry.
type deadLetters struct {
	retry.NopObserver
	counts map[retry.DeadReason]int
}

func (d deadLetters) Event(e retry.Event) {
	if e.Outcome == retry.DeadLettered {
		d.counts[e.Record.DeadReason]++
	}
}

// An app gives its observer to the Observe method of a Connection.
func ExampleObserver() {
	var retries retry.Connection // of config.Connect, relay.Connect or retrytest.New
	observe := func() { retries.Observe(deadLetters{counts: map[retry.DeadReason]int{}}) }
	_ = observe
}

// A handler's own policy is complete: it starts from a copy of the connection's.
func ExampleOptions() {
	connection := retry.Policy{Schedule: backoff.Constant(time.Minute, 3), MaxAge: time.Hour}
	own := connection
	own.Schedule = backoff.Constant(time.Second, 3)
	options := retry.Options{Concurrency: 1, Policy: &own}
	fmt.Println(options.Policy.Schedule, options.Policy.MaxAge)
	// Output:
	// 1s*3 1h0m0s
}

func ExampleReadinessHandler() {
	health := func() retry.Health { // the method Health of a Connection
		return retry.Health{Links: []retry.LinkHealth{{
			Name: "consuming", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), LastError: "connection refused",
		}}}
	}
	server := httptest.NewServer(retry.ReadinessHandler(health))
	defer server.Close()
	answer, err := http.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	fmt.Println(answer.Status, health().Ready())
	// Output:
	// 503 Service Unavailable the consuming connection is not open since 2026-01-02T03:04:05Z: connection refused
}
