package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/publisher"
)

func Example() {
	p, err := publisher.New(publisher.Config{
		URI:      "amqp://guest:guest@localhost:5672/",
		Exchange: "retry",
	}, watermill.NewStdLogger(false, false))
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()

	if err := p.Publish("10s.orders", message.NewMessage(watermill.NewUUID(), []byte("payload"))); err != nil {
		log.Fatal(err) // nobody may ack the original now
	}
}

func ExampleNew() {
	_, err := publisher.New(publisher.Config{URI: "localhost:5672"}, nil)
	fmt.Println(err)
	// Output: publisher config: URI: the scheme must be amqp or amqps
}

func ExampleConfig_Validate() {
	err := publisher.Config{URI: "amqp://localhost", ConfirmTimeout: -time.Second, MaxInFlight: 100_000}.Validate()
	fmt.Println(err)
	// Output:
	// publisher config: ConfirmTimeout: -1s, must not be negative (0 for the default)
	// MaxInFlight: 100000, must be between 1 and 65536 (0 for the default)
}

func ExampleConfig_redeclare() {
	_, _ = publisher.New(publisher.Config{
		URI:      "amqp://guest:guest@localhost:5672/",
		Exchange: "retry",
		Redeclare: func(ch *amqp091.Channel, routingKey string) error {
			_, err := ch.QueueDeclare("orders.retry.10s", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
			if err != nil {
				return err
			}
			return ch.QueueBind("orders.retry.10s", routingKey, "retry", false, nil)
		},
	}, nil)
}

func ExampleConfig_marshal() {
	_, _ = publisher.New(publisher.Config{
		URI: "amqp://guest:guest@localhost:5672/",
		Marshal: func(msg *message.Message) (amqp091.Publishing, error) {
			return amqp091.Publishing{MessageId: msg.UUID, ContentType: "application/json", Body: msg.Payload}, nil
		},
		Shrink: func(p *amqp091.Publishing, excess int) { delete(p.Headers, "stack_trace") },
	}, nil)
}

func ExamplePublisher_Publish() {
	var p *publisher.Publisher // of publisher.New

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	msg := message.NewMessageWithContext(ctx, watermill.NewUUID(), []byte("payload"))
	switch err := p.Publish("10s.orders", msg); {
	case err == nil:
		// in the queue
	case errors.Is(err, publisher.ErrRefused), errors.Is(err, publisher.ErrUnroutable):
		// trying again will not help until somebody has mended something
	default:
		// hold the message and try again: it may arrive twice
	}
}

func ExamplePublisher_Close() {
	var p *publisher.Publisher // of publisher.New

	if err := p.Close(); err != nil { // after everybody who publishes has stopped, the router for one
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
