package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/example/orders"
)

const (
	handlers       = 4 // on one queue: each bills one order at a time
	cleanupTimeout = 30 * time.Second
	closeTimeout   = 5 * time.Second
)

// rabbitMQ lets the broker itself hold the tiers, on queues that no other run has.
func rabbitMQ(ctx context.Context, opts options, logger watermill.LoggerAdapter) (*orders.Backend, error) {
	version, err := checkBroker(ctx, opts.uri)
	if err != nil {
		return nil, err
	}
	run := "demo-" + randomName()
	topic, rabbitmq := "orders."+run, amqp.NewDurableQueueConfig(opts.uri)
	var open closers
	fail := func(err error) (*orders.Backend, error) { return nil, errors.Join(err, open.close()) }

	// Your own configuration and a schedule go in. Leave Prefix out: it is here so that two demos never meet.
	rabbit, err := config.NewBuilder(config.BuilderConfig{AMQP: rabbitmq, Schedule: opts.schedule, Prefix: "retry." + run})
	if err != nil {
		return fail(err)
	}

	// The subscriber is Watermill's own; the builder's configuration makes it declare the retry queues, too.
	subscriber, err := amqp.NewSubscriber(rabbit.SubscriberConfig(), logger)
	if err != nil {
		return fail(err)
	}
	open = append(open, subscriber.Close)

	// The publisher of failures tells the truth: no error means that the broker has the message.
	failures, err := rabbit.NewPublisher(logger)
	if err != nil {
		return fail(err)
	}
	open = append(open, failures.Close)

	letters, err := amqp.NewSubscriber(rabbit.DeadLetterSubscriberConfig(), logger)
	if err != nil {
		return fail(err)
	}
	open = append(open, letters.Close)
	publisher, err := orderPublisher(opts.uri)
	if err != nil {
		return fail(err)
	}
	open = append(open, func() error { return closeInTime(publisher) })

	// The queues have to go whatever happens: no interrupt cuts this short.
	open = append(open, func() error {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return remove(cleanup, opts.uri, rabbit.Topology(topic))
	})
	return &orders.Backend{
		Name: version + " at " + place(opts.uri), Topic: topic,
		Publisher: publisher, Subscriber: subscriber,
		Retries: rabbit.TieredRetryConfig(failures), Handlers: handlers,
		DeadLetters: letters, DeadLetterTopic: topic, // its subscriber reads orders.dead
		Close: open.close,
	}, nil
}

// orderPublisher is what any service has that takes orders; it is no part of the retries.
func orderPublisher(uri string) (message.Publisher, error) {
	config := amqp.NewDurableQueueConfig(uri)
	config.Publish.ConfirmDelivery, config.Publish.ChannelPoolSize = true, 1
	return amqp.NewPublisher(config, watermill.NopLogger{})
}

// closeInTime gives up on a publisher that waits for a broker in an alarm.
func closeInTime(publisher message.Publisher) error {
	done := make(chan error, 1)
	go func() { done <- publisher.Close() }()
	select {
	case err := <-done:
		return err
	case <-time.After(closeTimeout):
		return fmt.Errorf("the publisher of orders does not close within %v", closeTimeout)
	}
}

func randomName() string {
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails
	return hex.EncodeToString(random)
}
