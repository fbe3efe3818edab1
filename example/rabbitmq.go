package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/example/orders"
	"github.com/tieredretry/watermill-retry/rabbitmq"
)

const cleanupTimeout = 30 * time.Second

// rabbitMQ uses tier queues on the broker. Their names are different in each run.
func rabbitMQ(ctx context.Context, opts options, logger watermill.LoggerAdapter) (*orders.Backend, error) {
	version, err := checkBroker(ctx, opts.uri)
	if err != nil {
		return nil, err
	}
	run := "demo-" + randomName()
	topic := "orders." + run
	var open closers
	fail := func(err error) (*orders.Backend, error) { return nil, errors.Join(err, open.close()) }

	// Connect needs your own configuration and a schedule. Do not set Prefix: here it separates two demos on one broker.
	settings := config.BuilderConfig{
		AMQP: amqp.NewDurableQueueConfig(opts.uri), Schedule: opts.schedule, Settings: rabbitmq.Settings{Prefix: "retry." + run},
	}
	retries, err := config.Connect(settings, logger)
	if err != nil {
		return fail(err)
	}
	open = append(open, retries.Close)

	// The builder has the names of the queues. The subscriber of the dead letters is Watermill's own.
	rabbit, err := config.NewBuilder(settings)
	if err != nil {
		return fail(err)
	}
	letters, err := amqp.NewSubscriber(rabbit.DeadLetterSubscriberConfig(), logger)
	if err != nil {
		return fail(err)
	}
	open = append(open, letters.Close)

	// The queues must be removed in any case, so an interrupt does not cancel this.
	open = append(open, func() error {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return remove(cleanup, opts.uri, rabbit.Topology(topic))
	})
	return &orders.Backend{
		Name: version + " at " + place(opts.uri), Topic: topic, Retries: retries,
		DeadLetters: letters, DeadLetterTopic: topic, // its subscriber reads <topic>.dead
		Close: open.close,
	}, nil
}

func randomName() string {
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails
	return hex.EncodeToString(random)
}
