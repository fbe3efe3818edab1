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

	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
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
		log.Fatal(err) // do not ack the original message: its copy may not be in a queue
	}
}

func ExampleNew() {
	_, err := publisher.New(publisher.Config{URI: "localhost:5672"}, nil)
	fmt.Println(err)
	// Output: publisher config: URI: the scheme must be amqp or amqps
}

func ExampleConfig() {
	config := publisher.Config{
		URI:            "amqp://guest:guest@localhost:5672/",
		Exchange:       "retry",
		AMQP:           &amqp091.Config{Heartbeat: 5 * time.Second},
		ConfirmTimeout: 10 * time.Second,
		MaxInFlight:    256,
	}
	fmt.Println(config.Validate())
	// Output: <nil>
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
	}, nil)
}

func ExampleConfig_shrink() {
	_, _ = publisher.New(publisher.Config{
		URI:      "amqp://guest:guest@localhost:5672/",
		Headroom: func(routingKey string) int { return 2048 + 4*len(routingKey) }, // for x-death and other headers of the broker
		Shrink:   func(p *amqp091.Publishing, excess int) { delete(p.Headers, "stack_trace") },
	}, nil)
}

func ExamplePublisher() {
	var p *publisher.Publisher        // created with publisher.New
	var subscriber message.Subscriber // of the work queue
	router := message.NewDefaultRouter(nil)

	router.AddHandler("billing", "orders", subscriber, "invoices", p, func(msg *message.Message) ([]*message.Message, error) {
		return message.Messages{message.NewMessage(watermill.NewUUID(), msg.Payload)}, nil
	})
}

func ExamplePublisher_Publish() {
	var p *publisher.Publisher // created with publisher.New

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
	var p *publisher.Publisher // created with publisher.New

	// Close it after everything that publishes with it, such as the router.
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
