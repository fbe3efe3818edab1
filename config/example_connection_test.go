package config_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// bill is the handler of the examples.
func bill(msg *message.Message) error {
	slog.Info("Billed", "order", msg.UUID)
	return nil
}

// connection is that of the examples below.
func connection() retry.Connection {
	rabbit, err := config.Connect(options(), nil)
	check(err)
	return rabbit
}

// Messages of one customer are handled one after the other, those of other customers meanwhile.
func ExampleConnect_addConsumerHandler() {
	rabbit, router := connection(), message.NewDefaultRouter(nil)
	rabbit.Observe(eventtest.OnEvent(func(e retry.Event) {
		if e.Outcome == retry.DeadLettered {
			slog.Error("order given up", "order", e.MessageUUID, "error", e.Err)
		}
	}))
	rabbit.AddConsumerHandler(router, "billing", "orders", bill, retry.Options{
		Policy: &retry.Policy{Schedule: backoff.Schedule{time.Second, time.Minute}},
		Order:  retry.Order{Key: func(msg *message.Message) string { return msg.Metadata.Get("customer") }},
	})
}

func ExampleConnect_addHandler() {
	rabbit, router := connection(), message.NewDefaultRouter(nil)
	rabbit.AddHandler(router, "billing", "orders", "invoices", func(order *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage(watermill.NewUUID(), order.Payload)}, nil
	})
}

// Watermill's Requeuer adds its handler by itself, so it gets a Subscriber, and its router the Middleware.
func ExampleConnect_subscriber_requeuer() {
	rabbit, router := connection(), message.NewDefaultRouter(nil)
	router.AddMiddleware(rabbit.Middleware)
	parked, err := rabbit.Subscriber("requeuer", retry.Options{Concurrency: 1})
	check(err)
	_, err = requeuer.NewRequeuer(requeuer.Config{
		Subscriber: parked, SubscribeTopic: "parked", Publisher: rabbit.Publisher(), Router: router,
		GeneratePublishTopic: func(p requeuer.GeneratePublishTopicParams) (string, error) {
			return p.Message.Metadata.Get("topic"), nil
		},
	}, nil)
	check(err)
}

// One middleware for all handlers of a router: each message is retried by the options of its own subscriber.
func ExampleConnect_middleware() {
	rabbit, router := connection(), message.NewDefaultRouter(nil)
	router.AddMiddleware(rabbit.Middleware)
	orders, err := rabbit.Subscriber("billing")
	check(err)
	router.AddConsumerHandler("billing", "orders", orders, bill)
}

func ExampleConnect_publisher() {
	rabbit := connection()
	err := rabbit.Publisher().Publish("orders", message.NewMessage("order-1", nil))
	if errors.Is(err, publish.ErrUnroutable) {
		log.Print(err) // run a subscriber of the topic once
	}
}

// An operator pauses a handler while the database that it needs is repaired.
func ExampleConnect_pause() {
	rabbit := connection()
	maintain := func() error {
		if err := rabbit.Pause("billing"); err != nil { // an unknown name; the error lists the names
			return err
		}
		// repair what the handler needs
		return rabbit.Resume("billing")
	}
	check(maintain())
}

// A handler begins paused, and is resumed when what it needs is there.
func ExampleConnect_resume() {
	rabbit, router := connection(), message.NewDefaultRouter(nil)
	rabbit.AddConsumerHandler(router, "billing", "orders", bill)
	check(rabbit.Pause("billing"))
	go func() {
		<-router.Running()
		check(rabbit.Resume("billing"))
	}()
	check(router.Run(context.Background()))
}

// All handlers of an app share two connections. Package rabbitmq has examples of every method.
func ExampleConnect() {
	logger := watermill.NopLogger{}
	rabbit, err := config.Connect(config.Config{
		AMQP:   amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
	}, logger)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rabbit.Close() // after the router
	router := message.NewDefaultRouter(logger)
	rabbit.AddConsumerHandler(router, "billing", "orders", bill)
}

// A message that fails always: it waits 1s, and becomes a dead letter at its second failure.
func Example_failure() {
	logger := watermill.NewSlogLogger(slog.Default())
	uri := cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@localhost:5672/")

	rabbit, err := config.Connect(config.Config{
		AMQP:   amqp.NewDurableQueueConfig(uri),
		Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}},
	}, logger)
	check(err)
	defer rabbit.Close() // after router.Run has returned

	refuse := func(*message.Message) error { return errors.New("the bank is down") }
	router := message.NewDefaultRouter(logger)
	rabbit.AddConsumerHandler(router, "billing", "orders", refuse)

	go func() {
		<-router.Running() // the queue exists
		check(rabbit.Publisher().Publish("orders", message.NewMessage("order-1", []byte(`{"ID": "order-1"}`))))
	}()
	check(router.Run(context.Background()))
}
