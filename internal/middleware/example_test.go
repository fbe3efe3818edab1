package middleware_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	retrymw "github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/retry"
)

// topics is a backend for a Pub/Sub that delays messages by itself, by the metadata of Watermill's components/delay.
type topics struct{ publisher message.Publisher }

func (topics) Use(retry.Policy) (backend.Traits, error) { return backend.Traits{}, nil }

func (b topics) Publish(c backend.Copy) (backend.Destination, error) {
	to := backend.Destination{Topic: fmt.Sprintf("%s.retry.%s", c.Topic, c.Tier)}
	if c.Tier == 0 {
		to.Topic = c.Topic + ".dead"
	}
	return to, b.publisher.Publish(to.Topic, c.Message)
}

// The middleware for a Pub/Sub of the app's choice. For RabbitMQ a builder of package config makes it.
func ExampleNew() {
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	policy := retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)}
	tiered, err := retrymw.New(policy, topics{pubSub}, nil)
	if err != nil {
		log.Fatal(err)
	}
	router := message.NewDefaultRouter(watermill.NopLogger{})
	router.AddConsumerHandler("billing", "orders", pubSub, func(*message.Message) error { return nil }).AddMiddleware(tiered.Middleware)
	fmt.Println(len(router.Handlers()), "handler with retries")
	// Output:
	// 1 handler with retries
}

func ExampleTieredRetry_Middleware() {
	pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	dead, err := pubSub.Subscribe(context.Background(), "orders.dead")
	if err != nil {
		log.Fatal(err)
	}
	tiered, err := retrymw.New(retry.Policy{Schedule: backoff.Constant(time.Minute, 3)}, topics{pubSub}, nil)
	if err != nil {
		log.Fatal(err)
	}

	router := message.NewDefaultRouter(watermill.NopLogger{})
	router.AddConsumerHandler("billing", "orders", pubSub, func(msg *message.Message) error {
		return backoff.Permanent(errors.New("no such customer"))
	}).AddMiddleware(tiered.Middleware)
	if err := pubSub.Publish("orders", message.NewMessage("order-1", nil)); err != nil {
		log.Fatal(err)
	}
	go func() { _ = router.Run(context.Background()) }()

	deadLetter := <-dead
	fmt.Println(deadLetter.UUID, deadLetter.Metadata["retry_dead_reason"], deadLetter.Metadata["retry_reason"])
	deadLetter.Ack()
	_ = router.Close()
	// Output:
	// order-1 permanent no such customer
}

// exampleConfig is a configuration for a Pub/Sub in memory.
func exampleConfig() settings {
	return settings{
		Policy:      retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
		Destination: topics{discard{}}.Publish,
		Publisher:   gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}),
	}
}

// orderFrom returns a message as a handler "billing" of topic "orders" gets it.
func orderFrom(metadata message.Metadata) *message.Message {
	msg := message.NewMessage("order-1", nil)
	msg.Metadata = metadata
	msg.SetContext(msgctx.WithOrigin(msg.Context(), "orders", "billing"))
	return msg
}

// An observer gets the outcome of every delivery.
func ExampleTieredRetry_Middleware_outcomes() {
	config := exampleConfig()
	config.Observers = eventtest.Observers(func(e retry.Event) {
		switch e.Outcome {
		case retry.DeadLettered:
			fmt.Println("dead-lettered:", e.MessageUUID, "as", e.Record.DeadReason, "on", e.Destination)
		case retry.Recovered:
			fmt.Println("recovered:", e.MessageUUID, "after failures:", e.Record.Failures)
		default:
			fmt.Printf("%s: %s waits %v on %v\n", e.Outcome, e.MessageUUID, e.Tier, e.Destination)
		}
	})
	tiered, err := config.Make(nil)
	if err != nil {
		log.Fatal(err)
	}

	_, _ = tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, errors.New("no answer from the bank")
	})(orderFrom(message.Metadata{}))

	back := message.Metadata{} // the message comes back, but a part of its requested delay remains
	retry.Record{Failures: 1, Topic: "orders", Remaining: time.Hour}.Write(back)
	_, _ = tiered.Middleware(message.PassthroughHandler)(orderFrom(back))

	over := message.Metadata{} // nothing remains
	retry.Record{Failures: 1, Topic: "orders"}.Write(over)
	_, _ = tiered.Middleware(message.PassthroughHandler)(orderFrom(over))

	_, _ = tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, backoff.Permanent(errors.New("no such customer"))
	})(orderFrom(message.Metadata{}))
	// Output:
	// retried: order-1 waits 1s on orders.retry.1s
	// parked: order-1 waits 125s on orders.retry.125s
	// recovered: order-1 after failures: 1
	// dead-lettered: order-1 as permanent on orders.dead
}

// RedactReason keeps secrets out of the failure record and the log.
func ExampleTieredRetry_Middleware_redactReason() {
	config := exampleConfig()
	config.Policy.RedactReason = func(reason string, err error) string { return strings.ReplaceAll(reason, "4111 1111", "****") }
	pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	config.Publisher = pubSub
	tiered, err := config.Make(nil)
	if err != nil {
		log.Fatal(err)
	}
	_, _ = tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, backoff.Permanent(errors.New("card 4111 1111 declined"))
	})(orderFrom(message.Metadata{}))

	dead, err := pubSub.Subscribe(context.Background(), "orders.dead")
	if err != nil {
		log.Fatal(err)
	}
	deadLetter := <-dead
	fmt.Println(deadLetter.Metadata["retry_reason"])
	deadLetter.Ack()
	// Output:
	// card **** declined
}

// The tiers are those of the schedule, of the rules, and the extra ones.
func ExampleTiers() {
	policy := retry.Policy{
		Schedule:   backoff.Schedule{time.Second, 5 * time.Second},
		Rules:      []retry.Rule{{If: retry.Is(sql.ErrConnDone), Then: retry.RetryWith(backoff.Constant(time.Minute, 30))}},
		ExtraTiers: []time.Duration{time.Hour},
	}
	fmt.Println(retrymw.Tiers(policy, true))
	// Output:
	// [1s 5s 1m 1h]
}

// For the middleware of a whole router: each message has the schedule of its subscriber.
func ExampleTieredRetry_Dispatch() {
	var tiered *retrymw.TieredRetry // of New
	router := message.NewDefaultRouter(nil)
	router.AddMiddleware(tiered.Dispatch)
}
