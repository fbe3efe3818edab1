package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
)

func Example() {
	logger := watermill.NewStdLogger(false, false)
	connection, err := subscriber.Open(subscriber.ConnectionConfig{URI: "amqp://guest:guest@localhost:5672/"}, logger)
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()

	orders, err := subscriber.NewSubscriber(connection, subscriber.Config{
		Declare: func(d subscriber.Declaration, topic string) error {
			_, err := d.Channel.QueueDeclare(topic, true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
			return err
		},
	}, logger)
	if err != nil {
		log.Fatal(err)
	}

	router := message.NewDefaultRouter(logger)
	router.AddConsumerHandler("billing", "orders", orders, func(msg *message.Message) error {
		return nil // 16 messages are in flight at the same time
	})
	if err := router.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func ExampleOpen() {
	_, err := subscriber.Open(subscriber.ConnectionConfig{URI: "localhost:5672"}, nil)
	fmt.Println(err)
	// Output: subscriber connection config: URI: the scheme must be amqp or amqps
}

func ExampleConnectionConfig() {
	config := subscriber.ConnectionConfig{
		URI:          "amqp://guest:guest@localhost:5672/",
		AMQP:         &amqp091.Config{Heartbeat: 5 * time.Second},
		ReconnectMax: 30 * time.Second,
	}
	fmt.Println(config.Validate())
	// Output: <nil>
}

func ExampleConnectionConfig_Validate() {
	err := subscriber.ConnectionConfig{URI: "amqp://localhost", ReconnectInitial: time.Minute, ReconnectMax: time.Second}.Validate()
	fmt.Println(err)
	// Output: subscriber connection config: ReconnectInitial: 1m0s, at most ReconnectMax, 1s
}

func ExampleConnection_Health() {
	var connection *subscriber.Connection // opened with subscriber.Open

	http.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := connection.Health().Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
}

func ExampleConnection_Close() {
	var connection *subscriber.Connection // opened with subscriber.Open

	// Close it after the router. It closes its subscribers first.
	if err := connection.Close(); err != nil {
		log.Print(err)
	}
}

func ExampleHealth_Ready() {
	since := time.Date(2026, 11, 21, 18, 0, 0, 0, time.UTC)
	health := subscriber.Health{
		Connected: true,
		Subscriptions: []subscriber.SubscriptionHealth{
			{Topic: "orders", Queue: "orders", Consuming: true},
			{Topic: "mails", Queue: "mails.billing", Since: since, LastError: errors.New("declare: access refused")},
		},
	}
	fmt.Println(health.Ready())
	// Output: topic "mails": not consuming queue "mails.billing" since 2026-11-21T18:00:00Z: declare: access refused
}

func ExampleNewSubscriber() {
	var connection *subscriber.Connection // opened with subscriber.Open

	_, err := subscriber.NewSubscriber(connection, subscriber.Config{Concurrency: -1}, nil)
	fmt.Println(err)
	// Output: subscriber config: Concurrency: -1, must be between 1 and 65535 (0 for the default)
}

func ExampleConfig() {
	config := subscriber.Config{
		QueueOf:     func(topic string) string { return topic + ".billing" },
		Concurrency: 64,
		Consumer:    subscriber.ConsumerConfig{Tag: "billing-1", Arguments: amqp091.Table{"x-priority": int32(10)}},
	}
	fmt.Println(config.Validate())
	// Output: <nil>
}

func ExampleConfig_Validate() {
	err := subscriber.Config{Concurrency: 64, Prefetch: 32, CloseTimeout: -time.Second}.Validate()
	fmt.Println(err)
	// Output:
	// subscriber config: Prefetch: 32, must be between Concurrency, 64, and 65535 (0 for the default)
	// CloseTimeout: -1s, must not be negative (0 for the default)
}

// Several handlers of one topic declare it once for each connection.
func ExampleDeclaration() {
	type declared struct {
		connection uint64
		at         time.Time
	}
	var (
		mu   sync.Mutex
		last = map[string]declared{} // by topic
	)
	_ = subscriber.Config{
		Declare: func(d subscriber.Declaration, topic string) error {
			mu.Lock()
			defer mu.Unlock()
			if done := last[topic]; done.connection == d.Connection && done.at.After(d.LostAt) {
				return nil
			}
			begin := time.Now()
			if _, err := d.Channel.QueueDeclare(topic, true, false, false, false, nil); err != nil {
				return err
			}
			last[topic] = declared{d.Connection, begin}
			return nil
		},
	}
}

func ExampleConfig_orderKey() {
	_ = subscriber.Config{
		// Messages of one customer are handled one after the other, and those of other customers at the same time.
		OrderKey: func(msg *message.Message) string { return msg.Metadata.Get("customer") },
		// When 48 messages wait for one customer, messages of other customers still arrive.
		Prefetch: 64,
	}
}

func ExampleConfig_context() {
	type queueKey struct{}
	_ = subscriber.Config{
		Context: func(ctx context.Context, delivery amqp091.Delivery, topic string) context.Context {
			return context.WithValue(ctx, queueKey{}, topic+".billing")
		},
	}
}

func ExampleSubscriber() {
	var events *subscriber.Subscriber // created with subscriber.NewSubscriber
	router := message.NewDefaultRouter(nil)

	// One Subscriber serves any number of handlers. Each has its own consumer, and Config.Concurrency messages in flight.
	router.AddConsumerHandler("billing", "orders", events, func(*message.Message) error { return nil })
	router.AddConsumerHandler("shipping", "parcels", events, func(*message.Message) error { return nil })
}

func ExampleSubscriber_Subscribe() {
	var orders *subscriber.Subscriber // created with subscriber.NewSubscriber

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	messages, err := orders.Subscribe(ctx, "orders")
	switch {
	case errors.Is(err, subscriber.ErrNotConnected):
		// the connection is being opened again: try again later
	case err != nil:
		log.Fatal(err)
	}
	for msg := range messages {
		go func() {
			fmt.Println(msg.UUID)
			msg.Ack()
		}()
	}
}

func ExampleSubscriber_SubscribeInitialize() {
	var orders *subscriber.Subscriber // created with subscriber.NewSubscriber

	// The queue exists when the first message is published.
	if err := orders.SubscribeInitialize("orders"); err != nil {
		log.Fatal(err)
	}
}

func ExampleSubscriber_Close() {
	var orders *subscriber.Subscriber // created with subscriber.NewSubscriber

	// It waits for messages in flight. Watermill's router calls it.
	if err := orders.Close(); err != nil {
		log.Print(err)
	}
}
