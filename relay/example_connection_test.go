package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// A whole app on Watermill's gochannel: no server, no network.
func Example() {
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
	retries, err := relay.Connect(relay.Config{
		Publisher:     pubSub,
		Policy:        retry.Policy{Schedule: backoff.Schedule{10 * time.Millisecond, 20 * time.Millisecond}},
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return pubSub, nil },
	}, nil)
	check(err)

	router := message.NewDefaultRouter(nil)
	billed := make(chan int)
	retries.AddConsumerHandler(router, "billing", "orders", func(msg *message.Message) error {
		record, _ := retry.ReadRecord(msg.Metadata)
		if record.Failures < 2 {
			return errors.New("the bank is down")
		}
		billed <- record.Failures
		return nil
	})

	go func() { check(router.Run(context.Background())) }()
	<-router.Running()
	check(retries.Publisher().Publish("orders", message.NewMessage("order-1", nil)))
	fmt.Println("billed after", <-billed, "failures")

	check(router.Close())
	check(retries.Close()) // after the router
	// Output:
	// billed after 2 failures
}

// The lines that differ from an app on RabbitMQ.
func ExampleConnect() {
	ctx, logger, router := context.Background(), watermill.NopLogger{}, message.NewDefaultRouter(nil)
	bill := func(*message.Message) error { return nil }

	pubSub := gochannel.NewGoChannel(gochannel.Config{}, logger)
	retries, err := relay.Connect(relay.Config{
		Publisher:     pubSub,
		Policy:        retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return pubSub, nil },
	}, logger)
	check(err)
	retries.AddConsumerHandler(router, "billing", "orders", bill)

	letters, err := pubSub.Subscribe(ctx, "retry.dead.billing") // gochannel drops what has no subscriber
	check(err)
	go func() {
		for letter := range letters {
			record, _ := retry.ReadRecord(letter.Metadata)
			fmt.Println(letter.UUID, record.DeadReason, record.Failures, record.Reason)
			letter.Ack()
		}
	}()

	check(router.Run(ctx))
	check(retries.Close()) // after the router
}

func ExampleConfig_Validate() {
	fmt.Println(relay.Config{Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 3)}}.Validate())
	// Output:
	// Publisher is nil: set the publisher of the copies
	// NewSubscriber is nil: set a function that returns the subscriber of one handler or tier; with gochannel return the Pub/Sub itself
}

// connectPubSub connects an app whose Pub/Sub has no settings.
func connectPubSub(pubSub *gochannel.GoChannel) retry.Connection {
	retries, err := relay.Connect(relay.Config{
		Publisher:     pubSub,
		Policy:        retry.Policy{Schedule: backoff.Schedule{10 * time.Millisecond}},
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return pubSub, nil },
	}, nil)
	check(err)
	return retries
}

// Code that adds its handlers by itself, as the processors of components/cqrs do: it gets a subscriber, and the router gets the
// middleware.
func ExampleConnect_subscriber() {
	retries := connectPubSub(gochannel.NewGoChannel(gochannel.Config{}, nil))
	router := message.NewDefaultRouter(nil)
	router.AddMiddleware(retries.Middleware)
	subscriber, err := retries.Subscriber("archive")
	check(err)
	archived := make(chan string)
	for _, topic := range []string{"orders", "mails"} {
		router.AddConsumerHandler("archive "+topic, topic, subscriber, func(msg *message.Message) error {
			if _, retried := retry.ReadRecord(msg.Metadata); !retried {
				return errors.New("the disk is full")
			}
			archived <- msg.UUID
			return nil
		})
	}
	go func() { check(router.Run(context.Background())) }()
	<-router.Running()
	for _, topic := range []string{"orders", "mails"} {
		check(retries.Publisher().Publish(topic, message.NewMessage("one of "+topic, nil)))
		fmt.Println(<-archived)
	}
	check(router.Close())
	check(retries.Close())
	// Output:
	// one of orders
	// one of mails
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
