package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
)

func Example() {
	logger := watermill.NewStdLogger(false, false)
	connection, err := publisher.Open(publisher.ConnectionConfig{URI: "amqp://guest:guest@localhost:5672/"}, logger)
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()

	failures, err := publisher.NewPublisher(connection, publisher.Config{Exchange: "retry"})
	if err != nil {
		log.Fatal(err)
	}
	if err := failures.Publish("10s.orders", message.NewMessage(watermill.NewUUID(), []byte("payload"))); err != nil {
		log.Fatal(err) // do not ack the original message: its copy may not be in a queue
	}
}

func ExampleNew() {
	_, err := publisher.New(publisher.ConnectionConfig{URI: "localhost:5672"}, publisher.Config{DeclareTimeout: -1}, nil)
	fmt.Println(err)
	// Output:
	// publisher connection config: URI: the scheme must be amqp or amqps
	// publisher config: DeclareTimeout: -1ns, must not be negative (0 for the default)
}

func ExampleOpen() {
	_, err := publisher.Open(publisher.ConnectionConfig{URI: "localhost:5672"}, nil)
	fmt.Println(err)
	// Output: publisher connection config: URI: the scheme must be amqp or amqps
}

func ExampleNewPublisher() {
	var connection *publisher.Connection // opened with publisher.Open

	// Each publisher has its own routing. Both use the same AMQP connection.
	_, _ = publisher.NewPublisher(connection, publisher.Config{Exchange: "retry"})
	_, _ = publisher.NewPublisher(connection, publisher.Config{
		Route: func(topic string) (exchange, routingKey string, err error) { return "events", topic, nil },
	})
}

func ExampleConnection_Close() {
	var connection *publisher.Connection // opened with publisher.Open

	// Close it after everything that publishes over it, such as the router. It closes its publishers first.
	if err := connection.Close(); err != nil {
		log.Print(err)
	}
}

func ExampleConnection_Channel() {
	var connection *publisher.Connection // opened with publisher.Open

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	channel, err := connection.Channel(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer channel.Close()
	if err := channel.ExchangeDeclarePassive("events", "topic", true, false, false, false, nil); err != nil {
		log.Fatal(err)
	}
}

func ExampleConnection_ServerVersion() {
	var connection *publisher.Connection // opened with publisher.Open

	fmt.Println(connection.ServerVersion()) // for example 4.0.5
}

func ExampleConnection_Health() {
	var connection *publisher.Connection // opened with publisher.Open

	http.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := connection.Health().Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
}

func ExampleHealth_Ready() {
	health := publisher.Health{
		Since:     time.Date(2026, 11, 21, 18, 0, 0, 0, time.UTC),
		LastError: errors.New("connect to localhost:5672: connection refused"),
	}
	fmt.Println(health.Ready())
	// Output: not connected since 2026-11-21T18:00:00Z: connect to localhost:5672: connection refused
}

func ExampleConnectionConfig() {
	config := publisher.ConnectionConfig{
		URI:            "amqp://guest:guest@localhost:5672/",
		AMQP:           &amqp091.Config{Heartbeat: 5 * time.Second},
		ConfirmTimeout: 10 * time.Second,
		MaxInFlight:    256,
	}
	fmt.Println(config.Validate())
	// Output: <nil>
}

func ExampleConnectionConfig_Validate() {
	err := publisher.ConnectionConfig{URI: "amqp://localhost", ConfirmTimeout: -time.Second, MaxInFlight: 100_000}.Validate()
	fmt.Println(err)
	// Output:
	// publisher connection config: ConfirmTimeout: -1s, must not be negative (0 for the default)
	// MaxInFlight: 100000, must be between 1 and 65536 (0 for the default)
}

func ExampleConfig() {
	config := publisher.Config{Exchange: "retry", DeclareTimeout: 5 * time.Second}
	fmt.Println(config.Validate())
	// Output: <nil>
}

func ExampleConfig_Validate() {
	err := publisher.Config{
		Exchange: "events",
		Route:    func(topic string) (exchange, routingKey string, err error) { return topic, "", nil },
	}.Validate()
	fmt.Println(err)
	// Output: publisher config: Route: is set, and so is Exchange, "events": only one of them may be set
}

func ExampleConfig_route() {
	_ = publisher.Config{
		// Each topic has a fanout exchange of its own, as in watermill-amqp's NewDurablePubSubConfig.
		Route: func(topic string) (exchange, routingKey string, err error) { return topic, "", nil },
		DeclareExchange: func(channel *amqp091.Channel, exchange string) error {
			return channel.ExchangeDeclare(exchange, "fanout", true, false, false, false, nil)
		},
	}
}

func ExampleConfig_redeclare() {
	_ = publisher.Config{
		Exchange: "retry",
		Redeclare: func(ch *amqp091.Channel, exchange, routingKey string) error {
			_, err := ch.QueueDeclare("orders.retry.10s", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
			if err != nil {
				return err
			}
			return ch.QueueBind("orders.retry.10s", routingKey, exchange, false, nil)
		},
	}
}

func ExampleConfig_marshal() {
	_ = publisher.Config{
		Marshal: func(msg *message.Message) (amqp091.Publishing, error) {
			return amqp091.Publishing{MessageId: msg.UUID, ContentType: "application/json", Body: msg.Payload}, nil
		},
	}
}

func ExampleConfig_shrink() {
	_ = publisher.Config{
		Headroom: func(routingKey string) int { return 2048 + 4*len(routingKey) }, // for x-death and other headers of the broker
		Spare:    func(routingKey string) int { return 52 },                       // for its counts of deliveries
		Shrink:   func(p *amqp091.Publishing, excess int) { delete(p.Headers, "stack_trace") },
	}
}

func ExamplePublisher() {
	var p *publisher.Publisher        // created with publisher.NewPublisher
	var subscriber message.Subscriber // of the work queue
	router := message.NewDefaultRouter(nil)

	router.AddHandler("billing", "orders", subscriber, "invoices", p, func(msg *message.Message) ([]*message.Message, error) {
		return message.Messages{message.NewMessage(watermill.NewUUID(), msg.Payload)}, nil
	})
}

func ExamplePublisher_Publish() {
	var p *publisher.Publisher // created with publisher.NewPublisher

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	msg := message.NewMessageWithContext(ctx, watermill.NewUUID(), []byte("payload"))
	switch err := p.Publish("10s.orders", msg); {
	case err == nil:
		// the message is in a queue
	case errors.Is(err, publisher.ErrRefused), errors.Is(err, publisher.ErrUnroutable):
		// another attempt fails as well, until the message or the topology is changed
	default:
		// keep the message and try again: it may be delivered twice
	}
}

func ExamplePublisher_Close() {
	var p *publisher.Publisher // created with publisher.NewPublisher

	// It waits for messages in flight. The connection stays open.
	if err := p.Close(); err != nil {
		log.Print(err)
	}
}

func ExamplePublishError() {
	err := error(&publisher.PublishError{
		Exchange: "retry", RoutingKey: "10s.orders", MessageUUID: "42", Err: publisher.ErrUnroutable,
	})
	var failed *publisher.PublishError
	if errors.As(err, &failed) {
		fmt.Println(failed.RoutingKey, errors.Is(err, publisher.ErrUnroutable))
	}
	fmt.Println(err)
	// Output:
	// 10s.orders true
	// publish to exchange "retry" with routing key "10s.orders", message "42": the message was not routed to any queue
}

func ExamplePublishError_Error() {
	err := &publisher.PublishError{
		Exchange: "retry", RoutingKey: "10s.orders", MessageUUID: "42",
		Err: publisher.ErrNotConfirmed, Cause: context.DeadlineExceeded,
	}
	fmt.Println(err.Error())
	// Output:
	// publish to exchange "retry" with routing key "10s.orders", message "42": the broker did not confirm the message: context deadline exceeded
}

func ExamplePublishError_Unwrap() {
	err := &publisher.PublishError{
		Err:   publisher.ErrRefused,
		Cause: &amqp091.Error{Code: amqp091.PreconditionFailed, Reason: "fast reply consumer does not exist"},
	}
	var broker *amqp091.Error
	fmt.Println(errors.Is(err, publisher.ErrRefused), errors.As(err, &broker), broker.Code)
	// Output: true true 406
}

func ExamplePublishError_Refused() {
	err := fmt.Errorf("orders: %w", &publisher.PublishError{Err: publisher.ErrRefused, Cause: errors.New("no JSON")})

	var failed interface{ Refused() bool } // for packages that do not import this one
	fmt.Println(errors.As(err, &failed) && failed.Refused())
	// Output: true
}

func ExamplePublishError_TooLarge() {
	fmt.Println((&publisher.PublishError{Err: publisher.ErrRefused, Cause: errors.New("no JSON")}).TooLarge())
	// Output: false
}

func ExamplePublishError_Closed() {
	fmt.Println((&publisher.PublishError{Err: publisher.ErrClosed}).Closed())
	// Output: true
}

func ExamplePublishError_Rejected() {
	full := &publisher.PublishError{RoutingKey: "10s.orders", Err: publisher.ErrNacked}
	if full.Rejected() {
		fmt.Println("publish it to another queue")
	}
	// Output: publish it to another queue
}

func ExamplePublishError_Unconfirmed() {
	unknown := &publisher.PublishError{RoutingKey: "10s.orders", Err: publisher.ErrNotConfirmed}
	if unknown.Unconfirmed() {
		fmt.Println("each further try may deliver it twice")
	}
	// Output: each further try may deliver it twice
}
