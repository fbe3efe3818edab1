package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// The parts of Connect: the relay, and the retry middleware.
func ExampleRelay() {
	ctx, logger, router := context.Background(), watermill.NopLogger{}, message.NewDefaultRouter(nil)
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, logger)
	bill := func(*message.Message) error { return nil }

	policy := retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)}
	tiers, err := relay.New(relay.Config{
		Publisher:     pubSub,
		Policy:        policy,
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return pubSub, nil },
	}, logger)
	check(err)
	tiered, err := retrymw.New(policy, tiers.Backend(), logger)
	check(err)
	tiers.AddConsumerHandler(router, "billing", "orders", pubSub, bill).AddMiddleware(tiered.Middleware)

	check(router.Run(ctx))
	check(tiers.Close())  // after the router
	check(pubSub.Close()) // after the tiers
}

func ExampleNew() {
	_, err := relay.New(relay.Config{Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 3)}}, nil)
	fmt.Println(err)
	// Output:
	// invalid relay.Config: Publisher is nil: give the relay a publisher of its own
	// NewSubscriber is nil: set a function that returns the subscriber of one tier; with gochannel return the Pub/Sub itself
}

// Names for a backend that allows no dots.
func ExampleConfig() {
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
	config := relay.Config{
		Publisher: pubSub,
		Policy:    retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
		NewSubscriber: func(p relay.SubscriberParams) (message.Subscriber, error) {
			return pubSub, nil // with a redelivery limit well above p.Hop, such as p.Hop + 10*time.Second
		},
		GenerateTopic: func(p relay.TopicParams) (string, error) {
			switch p.Kind {
			case relay.TierTopic:
				return p.Prefix + "-" + p.Tier.String(), nil
			case relay.ReturnTopic:
				return p.Prefix + "-return-" + strings.ReplaceAll(p.Handler, ".", "-"), nil
			default:
				return p.Prefix + "-dead-" + strings.ReplaceAll(p.Handler, ".", "-"), nil
			}
		},
	}
	fmt.Println(config.Validate())
	// Output:
	// <nil>
}

// A middleware that an app makes by itself has an observer, and a policy of its own.
func ExampleRelay_Observe() {
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
	tiers, err := relay.New(relay.Config{
		Publisher:     pubSub,
		Policy:        retry.Policy{Schedule: backoff.Constant(time.Minute, 3)},
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return pubSub, nil },
	}, nil)
	check(err)
	tiers.Observe(alarms{of: make(chan string, 1)})
}

func ExampleRelay_AddHandler() {
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
	policy := retry.Policy{Schedule: backoff.Schedule{10 * time.Millisecond}}
	tiers, err := relay.New(relay.Config{
		Publisher:     pubSub,
		Policy:        policy,
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return pubSub, nil },
	}, nil)
	check(err)
	tiered, err := retrymw.New(policy, tiers.Backend(), nil)
	check(err)
	bills, err := pubSub.Subscribe(context.Background(), "bills")
	check(err)

	router := message.NewDefaultRouter(nil)
	handler := tiers.AddHandler(router, "billing", "orders", pubSub, "bills", pubSub, func(msg *message.Message) ([]*message.Message, error) {
		if _, retried := retry.ReadRecord(msg.Metadata); !retried {
			return nil, errors.New("the bank is down")
		}
		return []*message.Message{msg.Copy()}, nil
	})
	handler.AddMiddleware(tiered.Middleware)
	go func() { check(router.Run(context.Background())) }()
	<-router.Running()

	check(pubSub.Publish("orders", message.NewMessage("order-1", nil)))
	bill := <-bills
	fmt.Println(bill.UUID, bill.Metadata)
	bill.Ack()
	check(router.Close())
	check(tiers.Close())
	// Output:
	// order-1 map[]
}
