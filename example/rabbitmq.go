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
	handlers       = 4 // on one queue; each bills one order at a time
	cleanupTimeout = 30 * time.Second
	closeTimeout   = 5 * time.Second
)

// rabbitMQ uses tier queues on the broker. Their names are different in each run.
func rabbitMQ(ctx context.Context, opts options, logger watermill.LoggerAdapter) (*orders.Backend, error) {
	version, err := checkBroker(ctx, opts.uri)
	if err != nil {
		return nil, err
	}
	run := "demo-" + randomName()
	topic, rabbitmq := "orders."+run, amqp.NewDurableQueueConfig(opts.uri)
	var open closers
	fail := func(err error) (*orders.Backend, error) { return nil, errors.Join(err, open.close()) }

	// The builder needs your own configuration and a schedule. Do not set Prefix: here it separates two demos on one broker.
	rabbit, err := config.NewBuilder(config.BuilderConfig{AMQP: rabbitmq, Schedule: opts.schedule, Prefix: "retry." + run})
	if err != nil {
		return fail(err)
	}

	// The subscriber is Watermill's own. With the builder's configuration it also declares the retry queues.
	subscriber, err := amqp.NewSubscriber(rabbit.SubscriberConfig(), logger)
	if err != nil {
		return fail(err)
	}
	open = append(open, subscriber.Close)

	// The publisher of the copies returns nil only when the broker has confirmed the message.
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

	// The queues must be removed in any case, so an interrupt does not cancel this.
	open = append(open, func() error {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return remove(cleanup, opts.uri, rabbit.Topology(topic))
	})
	return &orders.Backend{
		Name: version + " at " + place(opts.uri), Topic: topic,
		Publisher: publisher, Subscriber: subscriber,
		Retries: rabbit.TieredRetryConfig(failures), Handlers: handlers,
		DeadLetters: letters, DeadLetterTopic: topic, // its subscriber reads <topic>.dead
		Close: open.close,
	}, nil
}

// orderPublisher publishes the orders, as another service would. It has nothing to do with the retries.
func orderPublisher(uri string) (message.Publisher, error) {
	config := amqp.NewDurableQueueConfig(uri)
	config.Publish.ConfirmDelivery, config.Publish.ChannelPoolSize = true, 1
	return amqp.NewPublisher(config, watermill.NopLogger{})
}

// closeInTime limits the time to close the publisher: it can wait for ever for a broker that has raised an alarm.
func closeInTime(publisher message.Publisher) error {
	done := make(chan error, 1)
	go func() { done <- publisher.Close() }()
	select {
	case err := <-done:
		return err
	case <-time.After(closeTimeout):
		return fmt.Errorf("the publisher of orders did not close within %v", closeTimeout)
	}
}

func randomName() string {
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails
	return hex.EncodeToString(random)
}
