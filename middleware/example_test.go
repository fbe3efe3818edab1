package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

// The middleware for any Pub/Sub: topics are what the app makes them. For RabbitMQ config.Builder makes the configuration.
func ExampleNewTieredRetry() {
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	retry, err := retrymw.NewTieredRetry(retrymw.TieredRetryConfig{
		Publisher: pubSub,
		Schedule:  backoff.Exponential(time.Second, 5, 4),
		GenerateRetryDestination: func(p retrymw.RetryDestinationParams) (retrymw.Destination, error) {
			return retrymw.Destination{Topic: fmt.Sprintf("%s.retry.%s", p.Topic, p.Tier)}, nil
		},
		GenerateDeadLetterDestination: func(p retrymw.DeadLetterDestinationParams) (retrymw.Destination, error) {
			return retrymw.Destination{Topic: p.Topic + ".dead"}, nil
		},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	_ = retry.Middleware
}

func ExampleTieredRetryConfig_Validate() {
	fmt.Println(retrymw.TieredRetryConfig{Schedule: backoff.Constant(time.Second, 1), MaxHold: -time.Second}.Validate())
	// Output:
	// Publisher is nil: give the middleware a publisher that no handler uses, for RabbitMQ the one of Builder.NewPublisher
	// GenerateRetryDestination is nil: Builder.TieredRetryConfig sets it for RabbitMQ, Relay.TieredRetryConfig for other Pub/Subs
	// GenerateDeadLetterDestination is nil: Builder.TieredRetryConfig sets it for RabbitMQ, Relay.TieredRetryConfig for other Pub/Subs
	// MaxHold is -1s: it must be 0 (the default) or more
}

func ExampleTieredRetry_Middleware() {
	pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	dead, err := pubSub.Subscribe(context.Background(), "orders.dead")
	if err != nil {
		log.Fatal(err)
	}
	retry, err := retrymw.NewTieredRetry(retrymw.TieredRetryConfig{
		Publisher: pubSub,
		Schedule:  backoff.Constant(time.Minute, 3),
		GenerateRetryDestination: func(p retrymw.RetryDestinationParams) (retrymw.Destination, error) {
			return retrymw.Destination{Topic: p.Topic + ".retry"}, nil
		},
		GenerateDeadLetterDestination: func(p retrymw.DeadLetterDestinationParams) (retrymw.Destination, error) {
			return retrymw.Destination{Topic: p.Topic + ".dead"}, nil
		},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}

	router := message.NewDefaultRouter(watermill.NopLogger{})
	router.AddConsumerHandler("billing", "orders", pubSub, func(msg *message.Message) error {
		return backoff.Permanent(errors.New("no such customer"))
	}).AddMiddleware(retry.Middleware)
	if err := pubSub.Publish("orders", message.NewMessage("order-1", nil)); err != nil {
		log.Fatal(err)
	}
	go func() { _ = router.Run(context.Background()) }()

	letter := <-dead
	fmt.Println(letter.UUID, letter.Metadata[retrymw.DeadReasonKey], letter.Metadata[retrymw.ReasonKey])
	letter.Ack()
	_ = router.Close()
	// Output:
	// order-1 permanent no such customer
}

// A handler that does less on its last try.
func ExampleReadRecord() {
	handler := func(msg *message.Message) error {
		if record, retried := retrymw.ReadRecord(msg.Metadata); retried && record.Failures >= 3 {
			fmt.Println("failed", record.Failures, "times, the last time with:", record.Reason)
		}
		return nil
	}
	msg := message.NewMessage("order-1", nil)
	msg.Metadata.Set(retrymw.FailuresKey, "3")
	msg.Metadata.Set(retrymw.ReasonKey, "the bank is down")
	_ = handler(msg)
	// Output:
	// failed 3 times, the last time with: the bank is down
}

func ExamplePanicError() {
	onDeadLetter := func(e retrymw.DeadLetterEvent) {
		var panicked *retrymw.PanicError
		if errors.As(e.Err, &panicked) {
			fmt.Println("panicked with", panicked.Value)
		}
	}
	onDeadLetter(retrymw.DeadLetterEvent{Err: &retrymw.PanicError{Value: "boom"}})
	// Output:
	// panicked with boom
}

// What package relay does for the messages of a return topic.
func ExampleWithOrigin() {
	msg := message.NewMessage("order-1", nil)
	msg.SetContext(retrymw.WithOrigin(msg.Context(), "orders", "billing"))
	// A failure of this message counts on top of those in topic orders, whatever topic it came from.
}
