package config_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

func ExampleNewBuilder() {
	rabbit, err := config.NewBuilder(config.BuilderConfig{
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
	fmt.Println(config.BuilderConfig{AMQP: app, Schedule: backoff.Constant(time.Second, 3)}.Validate())
	// Output:
	// AMQP.Consume.NoRequeueOnNack is true: a shutdown nacks the message in flight, which is then dropped; the middleware nacks only what must come back
}

// Two consumer groups of one fan-out: each has queues of its own, and neither sees a retry of the other's.
func ExampleBuilder_SubscriberConfig() {
	uri := "amqp://guest:guest@localhost:5672/"
	for _, group := range []string{"billing", "shipping"} {
		rabbit, err := config.NewBuilder(config.BuilderConfig{
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
	rabbit, err := config.NewBuilder(config.BuilderConfig{
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
	rabbit, err := config.NewBuilder(config.BuilderConfig{
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
		slog.Error("order given up", "order", e.MessageUUID, "failures", e.Failures, "reason", e.Reason, "error", e.Err)
	}
	retry, err := retrymw.NewTieredRetry(tiered, nil)
	if err != nil {
		log.Fatal(err)
	}
	_ = retry.Middleware // for a handler's AddMiddleware
}

func ExampleBuilder_Topology() {
	rabbit, err := config.NewBuilder(config.BuilderConfig{
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

// An operator, or a deployment with more permissions than the app, declares everything beforehand.
func ExampleTopology_Declare() {
	rabbit, err := config.NewBuilder(config.BuilderConfig{
		AMQP:     amqp.NewDurableQueueConfig(os.Getenv("AMQP_URL")),
		Schedule: backoff.Constant(10*time.Second, 3),
	})
	if err != nil {
		log.Fatal(err)
	}
	connection, err := amqp091.Dial(os.Getenv("AMQP_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	channel, err := connection.Channel()
	if err != nil {
		log.Fatal(err)
	}
	if err := rabbit.Topology("orders").Declare(channel); err != nil {
		log.Fatal(err)
	}
}

// A health check that declares nothing.
func ExampleTopology_Verify() {
	check := func(topology config.Topology, channel *amqp091.Channel) {
		if err := topology.Verify(channel); err != nil {
			fmt.Println("the retry topology is not complete:", err)
		}
	}
	_ = check
}

func ExampleTopology_Validate() {
	rabbit, err := config.NewBuilder(config.BuilderConfig{
		AMQP:     amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Schedule: backoff.Constant(10*time.Second, 3),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rabbit.Topology("orders.#").Validate())
	// Output:
	// work queue "orders.#": its name must not hold the words * or #, which are patterns in a topic exchange's bindings
}

// Dead letters stay in their queue until somebody reads them, with any AMQP client.
func ExampleTopology_DeadLetterQueue() {
	rabbit, err := config.NewBuilder(config.BuilderConfig{
		AMQP:     amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Schedule: backoff.Constant(10*time.Second, 3),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rabbit.Topology("orders").DeadLetterQueue())
	// Output:
	// orders.dead
}

// Reading dead letters, also those that the broker itself gave up on, with their failure records.
func ExampleBuilder_DeadLetterSubscriberConfig() {
	rabbit, err := config.NewBuilder(config.BuilderConfig{
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

// What is in the way is named: the object, the argument, and both values.
func ExampleArgumentConflictError() {
	var err error = &config.ArgumentConflictError{Object: "orders.retry.10s", Argument: "x-message-ttl", Want: "10000", Have: "5000"}
	var conflict *config.ArgumentConflictError
	if errors.As(err, &conflict) {
		fmt.Println(conflict)
	}
	// Output:
	// "orders.retry.10s" exists with argument x-message-ttl=5000, wanted is 10000: delete it once it is empty, or ask for what it has
}

func ExampleTopology_String() {
	rabbit, err := config.NewBuilder(config.BuilderConfig{
		AMQP:      amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Schedule:  backoff.Constant(10*time.Second, 3),
		WorkQueue: config.Leave,
		QueueType: config.Classic,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rabbit.Topology("orders"))
	// Output:
	// exchange  retry             topic
	// exchange  retry.return      topic        alternate-exchange=retry.orphans
	// exchange  retry.orphans     fanout
	// queue     orders
	// queue     retry.orphans                  x-delivery-limit=1000000 x-queue-type=quorum
	// queue     orders.dead                    x-queue-type=classic
	// queue     orders.retry.10s               x-dead-letter-exchange=retry.return x-message-ttl=10000 x-queue-type=classic
	// binding   retry.orphans                  of retry.orphans
	// binding   orders.dead       dead.orders  of retry
	// binding   orders.retry.10s  10s.orders   of retry
	// binding   orders            *.orders     of retry.return
}

// Operators import it with the management API: POST /api/definitions/<vhost>.
func ExampleTopology_MarshalJSON() {
	rabbit, err := config.NewBuilder(config.BuilderConfig{
		AMQP:     amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Schedule: backoff.Constant(10*time.Second, 3),
	})
	if err != nil {
		log.Fatal(err)
	}
	definitions, err := json.MarshalIndent(rabbit.Topology("orders"), "", "  ")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(definitions) > 0)
	// Output:
	// true
}
