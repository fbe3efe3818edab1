package middleware_test

import (
	"context"
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
	"github.com/tieredretry/watermill-retry/internal/binding"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// topics is a backend for a Pub/Sub that delays messages by itself, by the metadata of Watermill's components/delay.
type topics struct{ publisher message.Publisher }

func (topics) Use(retry.Policy) (backend.Traits, error) { return backend.Traits{}, nil }

func (b topics) Publish(c backend.Copy) (retry.Destination, error) {
	to := retry.Destination{Topic: fmt.Sprintf("%s.retry.%s", c.Topic, c.Tier)}
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
	msg.SetContext(binding.WithOrigin(msg.Context(), "orders", "billing"))
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

func ExampleDeadReasons() {
	for _, reason := range retry.DeadReasons() {
		fmt.Println(reason)
	}
	// Output:
	// exhausted
	// permanent
	// expired
	// unmarshal
	// too_large
	// refused
	// no_tier
}

// Package relay does this for the messages of a return topic. The failure is then counted on topic orders.
func ExampleWithOrigin() {
	config := exampleConfig()
	config.Observers = eventtest.Observers(func(e retry.Event) { fmt.Println(e.Topic, e.Handler, e.Record.Failures) })
	tiered, err := config.Make(nil)
	if err != nil {
		log.Fatal(err)
	}

	msg := message.NewMessage("order-1", nil)
	retry.Record{Failures: 1, Topic: "orders"}.Write(msg.Metadata)
	msg.SetContext(binding.WithOrigin(msg.Context(), "orders", "billing"))
	_, _ = tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, errors.New("no answer from the bank")
	})(msg)
	// Output:
	// orders billing 2
}

func ExamplePanicError() {
	observe := func(e retry.Event) {
		var panicked *retry.PanicError
		if errors.As(e.Err, &panicked) {
			fmt.Println("panicked with", panicked.Value)
		}
	}
	observe(retry.Event{Err: &retry.PanicError{Value: "boom"}})
	// Output:
	// panicked with boom
}
