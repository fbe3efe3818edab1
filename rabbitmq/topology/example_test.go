package topology_test

import (
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// orders is the topology of a queue that the app declares durable and without arguments, as NewDurableQueueConfig of
// watermill-amqp does.
func orders() topology.Topology {
	return topology.New(topology.Config{Tiers: backoff.Constant(10*time.Second, 3).Tiers()}, topology.Queue{Name: "orders", Durable: true})
}

func dial() *amqp091.Channel {
	connection, err := amqp091.Dial(os.Getenv("AMQP_URL"))
	if err != nil {
		log.Fatal(err)
	}
	channel, err := connection.Channel()
	if err != nil {
		log.Fatal(err)
	}
	return channel
}

func ExampleNew() {
	t := topology.New(
		topology.Config{Tiers: backoff.Schedule{time.Second, 5 * time.Minute}.Tiers(), Prefix: "shop.retry"},
		topology.Queue{Name: "orders", Durable: true},
	)
	for _, queue := range t.Queues {
		fmt.Println(queue.Name)
	}
	// Output:
	// shop.retry.orphans
	// orders.dead
	// orders.shop.retry.1s
	// orders.shop.retry.5m
}

// A dead-letter queue that keeps the newest 100,000 dead letters, each for 30 days.
func ExampleRetention() {
	limits := topology.Retention{MaxLength: 100_000, MaxAge: 30 * 24 * time.Hour}
	t := topology.New(
		topology.Config{Tiers: backoff.Constant(10*time.Second, 3).Tiers(), DeadLetters: limits},
		topology.Queue{Name: "orders", Durable: true},
	)
	fmt.Println(limits)
	for _, queue := range t.Queues {
		if queue.Name == t.DeadLetterQueue() {
			fmt.Println(queue.Arguments["x-max-length"], queue.Arguments["x-overflow"], queue.Arguments["x-message-ttl"])
		}
	}
	// Output:
	// MaxLength 100000, MaxAge 720h
	// 100000 drop-head 2592000000
}

// An argument that loses messages is refused, with what to do.
func ExampleRetention_arguments() {
	config := topology.Config{
		Tiers:               backoff.Constant(10*time.Second, 3).Tiers(),
		TierArguments:       amqp091.Table{"x-max-length": 1_000_000, "x-expires": 60_000},
		DeadLetterArguments: amqp091.Table{"x-quorum-initial-group-size": 5},
	}
	fmt.Println(config.Validate())
	// Output:
	// TierArguments["x-expires"] is 60000: the broker deletes a queue that no consumer reads, with the messages in it: remove it
}

// An operator, or a deployment with more permissions than the app, declares everything beforehand.
func ExampleTopology_Declare() {
	if err := orders().Declare(dial()); err != nil {
		log.Fatal(err)
	}
}

// Another tool declares the work queue.
func ExampleTopology_DeclareRetry() {
	if err := orders().DeclareRetry(dial()); err != nil {
		log.Fatal(err)
	}
}

// A health check that declares nothing.
func ExampleTopology_Verify() {
	if err := orders().Verify(dial()); err != nil {
		fmt.Println("the retry topology is not complete:", err)
	}
}

func ExampleTopology_Validate() {
	t := topology.New(topology.Config{Tiers: backoff.Constant(10*time.Second, 3).Tiers()}, topology.Queue{Name: "orders.#", Durable: true})
	fmt.Println(t.Validate())
	// Output:
	// work queue "orders.#": its name must not contain the words * or #, which are patterns in the bindings of a topic exchange
}

// The error names the object, the argument and both values.
func ExampleArgumentConflictError() {
	var err error = &topology.ArgumentConflictError{Object: "orders.retry.10s", Argument: "x-message-ttl", Want: "10000", Have: "5000"}
	var conflict *topology.ArgumentConflictError
	if errors.As(err, &conflict) {
		fmt.Println(conflict)
	}
	// Output:
	// "orders.retry.10s" exists with argument x-message-ttl=5000, wanted is 10000: delete it once it is empty, or configure the value that it has
}

// A group of work queues shares its tiers.
func ExampleConfig_tierGroup() {
	config := topology.Config{Tiers: backoff.Constant(10*time.Second, 3).Tiers(), TierGroup: "shop"}
	for _, name := range []string{"orders", "mails"} {
		t := topology.New(config, topology.Queue{Name: name, Durable: true})
		fmt.Println(t.Exchanges[0].Name, t.Queues[len(t.Queues)-1].Name)
	}
	// Output:
	// shop.retry shop.retry.10s
	// shop.retry shop.retry.10s
}
