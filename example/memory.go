package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/tieredretry/watermill-retry/example/orders"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// memory is Watermill's gochannel, in this process. It has no queues with a TTL, so a relay provides the tiers.
func memory(_ context.Context, opts orders.Options, logger watermill.LoggerAdapter) (*orders.Backend, error) {
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, logger)

	// The relay needs a publisher, the schedule, and a subscriber for each handler and each tier.
	retries, err := relay.Connect(relay.Config{
		Publisher:     pubSub,
		Policy:        retry.Policy{Schedule: opts.Schedule},
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return pubSub, nil },
	}, logger)
	if err != nil {
		return nil, err
	}
	return &orders.Backend{
		Name: "Watermill's gochannel, in this process", Topic: "orders", Retries: retries,
		Closers: []func() error{retries.Close},
	}, nil
}
