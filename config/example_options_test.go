package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

var (
	rabbit retry.Connection // what Connect returns
	router *message.Router
	send   = bill
)

// Each handler can have options of its own.
func Example_options() {
	policy := retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4), MaxHold: 5 * time.Minute}
	patient := policy // that of the connection
	patient.Schedule = backoff.Constant(time.Minute, 10)
	rabbit.AddConsumerHandler(router, "mail", "mails", send, retry.Options{Policy: &patient, Concurrency: 64})

	rabbit.AddConsumerHandler(router, "billing", "orders", bill, retry.Options{
		Order: retry.Order{Key: func(msg *message.Message) string { return msg.Metadata.Get("customer") }},
	}).AddMiddleware(middleware.Timeout(time.Minute))
}

// Messages of one customer are handled in their order, through retries and in any number of processes.
func Example_order() {
	policy := retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4), TierGroup: "shop"}
	rabbit.AddConsumerHandler(router, "billing", "orders", bill, retry.Options{
		Order: retry.Order{Key: func(msg *message.Message) string { return msg.Metadata.Get("customer") }, Partitions: 8},
	})

	// Nothing waits on tiers, so a handler cannot have those of a group.
	ordered := policy // that of the connection
	ordered.TierGroup, ordered.ExtraTiers = "", nil
	byCustomer := retry.Order{Key: func(msg *message.Message) string { return msg.Metadata.Get("customer") }, Partitions: 8}
	byCustomer.Block = true // a message that is given up keeps those of its customer waiting
	rabbit.AddConsumerHandler(router, "mail", "mails", send, retry.Options{Policy: &ordered, Order: byCustomer})
}

// An app that declares nothing on the broker.
func Example_settings() {
	app := amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/")
	policy := retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)}
	c := config.Config{AMQP: app, Policy: policy, Settings: rabbitmq.Settings{VerifyOnly: true}}
	rabbit, err := config.Connect(c, watermill.NopLogger{})
	check(err)
	defer rabbit.Close() // after router.Run has returned
}

// A readiness probe, for example of Kubernetes, and the whole health.
func Example_readiness() {
	http.Handle("/ready", retry.ReadinessHandler(rabbit.Health))
	http.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(rabbit.Health()) // for wmretry doctor
	})
	go func() { check(http.ListenAndServe(":8080", nil)) }()
}

// Dead-letter queues that drop the oldest dead letters.
func Example_retention() {
	uri, logger := "amqp://guest:guest@localhost:5672/", watermill.NopLogger{}
	rabbit, err := config.Connect(config.Config{
		AMQP:     amqp.NewDurableQueueConfig(uri),
		Policy:   retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
		Settings: rabbitmq.Settings{DeadLetters: topology.Retention{MaxLength: 100_000, MaxAge: 30 * 24 * time.Hour}},
	}, logger)
	check(err)
	defer rabbit.Close() // after router.Run has returned
}

// order is what an app bills.
type order struct{ ID string }

// charge asks a provider for the money.
func charge(order) (status int, err error) { return http.StatusOK, nil }

// An error decides what becomes of its message.
func Example_errors() {
	bill := func(msg *message.Message) error {
		var o order
		if err := json.Unmarshal(msg.Payload, &o); err != nil {
			return backoff.Permanent(err) // dead-lettered at once
		}
		status, err := charge(o)
		switch {
		case err != nil:
			return fmt.Errorf("charge %s: %w", o.ID, err) // waits for the delay of the schedule
		case status == http.StatusTooManyRequests:
			return backoff.RetryAfter(errors.New("too many requests"), 30*time.Second) // waits for at least 30s
		}
		return nil
	}
	_ = bill
}

var errDeclined = errors.New("the card was declined") // of bill

// The handler pauses while the bank is down.
func Example_breaker() {
	rabbit.AddConsumerHandler(router, "billing", "orders", bill, retry.Options{
		Policy: &retry.Policy{Schedule: backoff.Constant(time.Minute, 30), Breaker: &retry.Breaker{
			MaxPause: 5 * time.Second,
			Failed:   func(err error) bool { return !errors.Is(err, errDeclined) }, // a declined card is no outage
		}},
	})
}

// Hundreds of quiet work queues share their tiers. A busy one has tiers of its own.
func Example_tierGroup() {
	policy := retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4), TierGroup: "shop"}
	rabbit, err := config.Connect(config.Config{
		AMQP:   amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Policy: policy,
	}, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		log.Fatal(err)
	}
	rabbit.AddConsumerHandler(router, "mail", "mails", send)
	busy := policy
	busy.TierGroup = ""
	rabbit.AddConsumerHandler(router, "billing", "orders", bill, retry.Options{Policy: &busy})
}
