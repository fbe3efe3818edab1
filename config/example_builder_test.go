package config_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// options are the configuration of most examples.
func options() config.Config {
	return config.Config{
		AMQP:   amqp.NewDurableQueueConfig("amqp://shop:secret@localhost:5672/"),
		Policy: retry.Policy{Schedule: backoff.Constant(10*time.Second, 3)},
	}
}

func build(options config.Config) *config.Builder {
	builder, err := config.NewBuilder(options)
	check(err)
	return builder
}

func ExampleConfig() {
	rabbit := build(config.Config{
		AMQP:     amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		Policy:   retry.Policy{Schedule: backoff.Schedule{time.Second, 5 * time.Minute}},
		Settings: rabbitmq.Settings{Prefix: "shop.retry", WorkQueueMode: topology.Leave},
	})
	for _, queue := range rabbit.Topology("orders").Queues {
		fmt.Println(queue.Name)
	}
	// Output:
	// shop.retry.orphans
	// orders.dead
	// orders.shop.retry.1s
	// orders.shop.retry.5m
}

// Messages that fail together come back over a fifth of each delay. Each delay has eight queues.
func ExampleConfig_jitter() {
	jittered := options()
	jittered.Policy.Jitter = 0.2
	for _, queue := range build(jittered).Topology("orders").Queues {
		fmt.Println(queue.Name)
	}
	// Output:
	// retry.orphans
	// orders.dead
	// orders.retry.10s
	// orders.retry.10250ms
	// orders.retry.10500ms
	// orders.retry.10750ms
	// orders.retry.11s
	// orders.retry.11250ms
	// orders.retry.11500ms
	// orders.retry.11750ms
}

func ExampleConfig_Validate() {
	options := options()
	options.AMQP.Publish.Transactional = true
	options.QueueType = "lazy"
	fmt.Println(options.Validate())
	// Output:
	// QueueType is "lazy": it must be "quorum" or "classic"
	// AMQP.Publish.Transactional is true: failures are published with confirms, which a transactional channel does not have
}

// Two consumer groups of one fan-out. Each has its own queues and gets only its own retries.
func ExampleBuilder_SubscriberConfig() {
	for _, group := range []string{"billing", "shipping"} {
		options := options()
		options.AMQP = amqp.NewDurablePubSubConfig("amqp://localhost:5672/", amqp.GenerateQueueNameTopicNameWithSuffix(group))
		rabbit := build(options)
		fmt.Println(rabbit.SubscriberConfig().Queue.GenerateName("orders"), rabbit.Topology("orders").Queues[2].Name)
	}
	// Output:
	// orders_billing orders_billing.retry.10s
	// orders_shipping orders_shipping.retry.10s
}

func ExampleBuilder_NewTieredRetry() {
	var metrics retry.Observer // of package observe
	builder := build(options())
	builder.Observe(metrics)
	tiered, err := builder.NewTieredRetry(watermill.NopLogger{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = builder.Close() }() // after the router has closed: messages in flight still need it
	_ = tiered                             // for a handler's AddMiddleware
}

func ExampleBuilder_Topology() {
	for _, binding := range build(options()).Topology("orders").Bindings {
		fmt.Printf("%s -- %s --> %s\n", binding.Exchange, binding.Key, binding.Queue)
	}
	// Output:
	// retry.orphans --  --> retry.orphans
	// retry -- dead.orders --> orders.dead
	// retry -- 10s.orders --> orders.retry.10s
	// retry.return.any -- *.orders --> orders
	// retry.return -- 10s.orders --> orders
}

// Every dead letter has a failure record, also if the broker itself dead-lettered the message. The program needs only the app's
// own configuration.
func ExampleDeadLetterSubscriberConfig() {
	app := amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/")

	reader, err := config.DeadLetterSubscriberConfig(app, "")
	if err != nil {
		log.Fatal(err)
	}
	subscriber, err := amqp.NewSubscriber(reader, watermill.NopLogger{})
	if err != nil {
		log.Fatal(err)
	}
	letters, err := subscriber.Subscribe(context.Background(), "orders")
	if err != nil {
		log.Fatal(err)
	}
	for letter := range letters {
		record, _ := retry.ReadRecord(letter.Metadata)
		fmt.Println(letter.UUID, record.DeadReason, record.Failures, record.Reason)
		letter.Ack() // removes it
	}
}

// The password is not printed.
func ExampleBuilder_Format() {
	fmt.Println(build(options()))
	// Output:
	// Builder(amqp://shop:xxxxx@localhost:5672/, prefix retry, schedule 10s*3)
}

// All faults are reported at once.
func ExampleNewBuilder() {
	app := amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/")
	app.Consume.NoRequeueOnNack = true
	_, err := config.NewBuilder(config.Config{AMQP: app, Policy: retry.Policy{Schedule: backoff.Constant(-time.Second, 1)}})
	fmt.Println(err)
	// Output:
	// invalid Config: Policy.Schedule: backoff: retry 1: delay -1s is too short: want at least 1ms
	// invalid Config: AMQP.Consume.NoRequeueOnNack is true: a nacked message would be dropped, and a shutdown nacks the message in flight; the middleware nacks only what must be redelivered
}
