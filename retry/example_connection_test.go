package retry_test

import (
	"context"
	"encoding/json"
	"errors"
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

var errDeclined = errors.New("the card was declined")

// The handler pauses while the bank is down. An order whose card is declined says nothing about the others.
func ExampleBreaker() {
	var retries retry.Connection // of config.Connect, relay.Connect or retrytest.New
	start := func(router *message.Router, bill message.NoPublishHandlerFunc) {
		retries.AddConsumerHandler(router, "billing", "orders", bill, retry.Options{
			Policy: &retry.Policy{Schedule: backoff.Constant(time.Minute, 30), Breaker: &retry.Breaker{
				MaxPause: 5 * time.Second,
				Failed:   func(err error) bool { return !errors.Is(err, errDeclined) },
			}},
		})
	}
	_ = start
}

// The endpoint of one customer that is down, or slow, does not slow the others.
func ExampleBreaker_key() {
	var rabbit retry.Connection // or another backend
	start := func(router *message.Router, deliver message.NoPublishHandlerFunc) {
		rabbit.AddConsumerHandler(router, "deliver", "webhooks", deliver, retry.Options{
			Policy: &retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 5), Breaker: &retry.Breaker{
				Key: func(msg *message.Message) string { return msg.Metadata.Get("tenant") },
			}},
		})
	}
	publish := func(msg *message.Message, customer string) error {
		msg.Metadata.Set("tenant", customer) // where it is published
		return rabbit.Publisher().Publish("webhooks", msg)
	}
	_, _ = start, publish
}

// The handler reads how often the message has failed before.
func ExampleReadRecord() {
	handler := func(msg *message.Message) error {
		if record, retried := retry.ReadRecord(msg.Metadata); retried && record.Failures >= 3 {
			fmt.Println("failed", record.Failures, "times, the last time with:", record.Reason)
		}
		return nil
	}
	msg := message.NewMessage("order-1", nil)
	msg.Metadata.Set("retry_failures", "3")
	msg.Metadata.Set("retry_reason", "the bank is down")
	_ = handler(msg)
	// Output:
	// failed 3 times, the last time with: the bank is down
}

func ExampleRecord() {
	text, err := json.Marshal(retry.Record{Failures: 2, Topic: "orders", Handler: "billing", DeadReason: retry.DeadReasonPermanent})
	fmt.Println(string(text), err)
	// Output:
	// {"failures":2,"topic":"orders","handler":"billing","dead_reason":"permanent"} <nil>
}

func ExampleRecord_Write() {
	metadata := message.Metadata{"trace": "abc"}
	retry.Record{Failures: 2, Topic: "orders", DeadReason: retry.DeadReasonExhausted}.Write(metadata)
	fmt.Println(metadata["trace"], metadata["retry_failures"], metadata["retry_topic"], metadata["retry_dead_reason"])
	// Output:
	// abc 2 orders exhausted
}

// Code that copies metadata selectively keeps all of these keys.
func ExampleRecordKeys() {
	from := message.Metadata{"trace": "abc", "retry_failures": "2", "retry_topic": "orders"}
	to := message.Metadata{}
	for _, key := range retry.RecordKeys() {
		if value, found := from[key]; found {
			to[key] = value
		}
	}
	fmt.Println(to)
	// Output:
	// map[retry_failures:2 retry_topic:orders]
}
