package configv3_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/configv3"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

func ExampleNewBuilder() {
	rabbit, err := configv3.NewBuilder(configv3.BuilderConfig{
		AMQP:     amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Schedule: backoff.Schedule{time.Second, 5 * time.Minute},
		Prefix:   "shop.retry",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, queue := range rabbit.Topology("orders").Queues {
		fmt.Println(queue.Name)
	}
	// Output:
	// shop.retry.orphans
	// orders.dead
	// orders.shop.retry.1s
	// orders.shop.retry.5m
}

func ExampleBuilderConfig_Validate() {
	app := amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/")
	app.Consume.NoRequeueOnNack = true
	fmt.Println(configv3.BuilderConfig{AMQP: app, Schedule: backoff.Constant(time.Second, 3)}.Validate())
	// Output:
	// AMQP.Consume.NoRequeueOnNack is true: a shutdown nacks the message in flight, which is then dropped; the middleware nacks only what must come back
}

// Two consumer groups of one fan-out: each has queues of its own, and neither sees a retry of the other's.
func ExampleBuilder_SubscriberConfig() {
	uri := "amqp://guest:guest@localhost:5672/"
	for _, group := range []string{"billing", "shipping"} {
		rabbit, err := configv3.NewBuilder(configv3.BuilderConfig{
			AMQP:     amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(group)),
			Schedule: backoff.Constant(10*time.Second, 3),
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(rabbit.SubscriberConfig().Queue.GenerateName("orders"), rabbit.Topology("orders").Queues[2].Name)
	}
	// Output:
	// orders_billing orders_billing.retry.10s
	// orders_shipping orders_shipping.retry.10s
}

func ExampleBuilder_NewPublisher() {
	rabbit, err := configv3.NewBuilder(configv3.BuilderConfig{
		AMQP:     amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Schedule: backoff.Constant(10*time.Second, 3),
	})
	if err != nil {
		log.Fatal(err)
	}
	failures, err := rabbit.NewPublisher(nil)
	if err != nil {
		log.Fatal(err)
	}
	// After the router has closed: messages in flight still need it.
	defer func() { _ = failures.Close() }()
}

// Hooks and limits are set on what the builder returns.
func ExampleBuilder_TieredRetryConfig() {
	rabbit, err := configv3.NewBuilder(configv3.BuilderConfig{
		AMQP:     amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Schedule: backoff.Constant(10*time.Second, 3),
	})
	if err != nil {
		log.Fatal(err)
	}
	failures, err := rabbit.NewPublisher(nil)
	if err != nil {
		log.Fatal(err)
	}
	tiered := rabbit.TieredRetryConfig(failures)
	tiered.MaxHold = 5 * time.Minute
	tiered.OnDeadLetter = func(e retrymw.DeadLetterEvent) {
		slog.Error("order given up", "order", e.MessageUUID, "failures", e.Failures, "reason", e.DeadReason, "error", e.Err)
	}
	retry, err := retrymw.NewTieredRetry(tiered, nil)
	if err != nil {
		log.Fatal(err)
	}
	_ = retry.Middleware // for a handler's AddMiddleware
}

func ExampleBuilder_Topology() {
	rabbit, err := configv3.NewBuilder(configv3.BuilderConfig{
		AMQP:     amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Schedule: backoff.Constant(10*time.Second, 3),
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, binding := range rabbit.Topology("orders").Bindings {
		fmt.Printf("%s -- %s --> %s\n", binding.Exchange, binding.Key, binding.Queue)
	}
	// Output:
	// retry.orphans --  --> retry.orphans
	// retry -- dead.orders --> orders.dead
	// retry -- 10s.orders --> orders.retry.10s
	// retry.return -- *.orders --> orders
}

// Reading dead letters, also those that the broker itself gave up on, with their failure records.
func ExampleBuilder_DeadLetterSubscriberConfig() {
	rabbit, err := configv3.NewBuilder(configv3.BuilderConfig{
		AMQP:     amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Schedule: backoff.Constant(10*time.Second, 3),
	})
	if err != nil {
		log.Fatal(err)
	}
	subscriber, err := amqp.NewSubscriber(rabbit.DeadLetterSubscriberConfig(), watermill.NopLogger{})
	if err != nil {
		log.Fatal(err)
	}
	letters, err := subscriber.Subscribe(context.Background(), "orders")
	if err != nil {
		log.Fatal(err)
	}
	for letter := range letters {
		record, _ := retrymw.ReadRecord(letter.Metadata)
		fmt.Println(letter.UUID, record.DeadReason, record.Failures, record.Reason)
		letter.Ack() // removes it
	}
}

// A password is not printed with the configuration, nor with the builder.
func ExampleBuilder_Format() {
	app := configv3.BuilderConfig{
		AMQP:     amqp.NewDurableQueueConfig("amqp://shop:secret@localhost:5672/"),
		Schedule: backoff.Constant(10*time.Second, 3),
	}
	rabbit, err := configv3.NewBuilder(app)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rabbit)
	fmt.Println(strings.Contains(fmt.Sprintf("%+v", app), "secret"))
	// Output:
	// Builder(amqp://shop:xxxxx@localhost:5672/, prefix retry, schedule 10s*3)
	// false
}

// What is in the way is named: the object, the argument, and both values.
func ExampleArgumentConflictError() {
	subscribe := func() error { // Subscribe of a subscriber with the builder's configuration
		return &configv3.ArgumentConflictError{Object: "orders.retry.10s", Argument: "x-message-ttl", Want: "10000", Have: "5000"}
	}
	var conflict *configv3.ArgumentConflictError
	if errors.As(subscribe(), &conflict) {
		fmt.Println(conflict.Object, conflict.Argument, "is", conflict.Have)
	}
	// Output:
	// orders.retry.10s x-message-ttl is 5000
}
