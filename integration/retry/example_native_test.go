package retry_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/integration/major/amqp"
)

// quorumMarshaler also reads what a quorum queue delivers again: the broker's counts are headers that are not strings.
type quorumMarshaler struct{ amqp.DefaultMarshaler }

func (m quorumMarshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	headers := amqp091.Table{}
	for key, value := range delivery.Headers {
		headers[key] = fmt.Sprint(value)
	}
	delivery.Headers = headers
	return m.DefaultMarshaler.Unmarshal(delivery)
}

// giveUp calls dead around the handler when a message is delivered for the last time.
func giveUp(dead message.HandlerMiddleware, deliveries int) message.HandlerMiddleware {
	return func(handler message.HandlerFunc) message.HandlerFunc {
		last := dead(handler)
		return func(msg *message.Message) ([]*message.Message, error) {
			before, _ := strconv.Atoi(msg.Metadata.Get("x-acquired-count")) // absent at the first delivery
			if before+1 >= deliveries {
				return last(msg)
			}
			return handler(msg)
		}
	}
}

func nativeConfig(uri string) amqp.Config {
	app := amqp.NewDurableQueueConfig(uri)
	app.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum"}
	app.Marshaler = quorumMarshaler{}
	app.Publish.ConfirmDelivery = true
	return app
}

func Example_nativeDelayedRetry() {
	uri, logger := "amqp://guest:guest@localhost:5672/", watermill.NopLogger{}
	bill := func(*message.Message) error { return errors.New("the provider is down") }

	app := nativeConfig(uri)
	subscriber, err := amqp.NewSubscriber(app, logger)
	check(err)
	publisher, err := amqp.NewPublisher(app, logger)
	check(err)
	poison, err := wmiddleware.PoisonQueue(publisher, "orders.poison")
	check(err)
	router := message.NewDefaultRouter(logger)
	router.AddConsumerHandler("billing", "orders", subscriber, bill).AddMiddleware(giveUp(poison, 5))
	check(router.Run(context.Background()))
}
