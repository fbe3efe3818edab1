package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/example/orders"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// rabbitMQ uses tier queues on the broker. Their names are different in each run.
func rabbitMQ(_ context.Context, opts orders.Options, logger watermill.LoggerAdapter) (*orders.Backend, error) {
	uri := cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@localhost:5672/")
	run := "demo-" + strings.ToLower(rand.Text()[:8])
	topic := "orders." + run

	// Connect needs your own configuration and a schedule. Do not set Prefix: here it separates two demos on one
	// broker.
	settings := config.Config{
		AMQP: amqp.NewDurableQueueConfig(uri), Policy: retry.Policy{Schedule: opts.Schedule},
		Settings: rabbitmq.Settings{Prefix: "retry." + run},
	}
	retries, err := config.Connect(settings, logger)
	if err != nil {
		return nil, err
	}
	// The builder has the names of the queues.
	rabbit, err := config.NewBuilder(settings)
	if err != nil {
		return nil, errors.Join(err, retries.Close())
	}
	return &orders.Backend{
		Name: "RabbitMQ", Topic: topic, Retries: retries,
		Closers: []func() error{retries.Close, func() error { return remove(uri, rabbit.Topology(topic)) }},
	}, nil
}

// remove deletes all queues and exchanges of the demo. A topology is plain data, so it can be walked through.
func remove(uri string, t topology.Topology) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("queues of %q may be left on the broker: %w", t.WorkQueue.Name, err)
		}
	}()
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, connection.Close()) }()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	for _, queue := range append(t.Queues, t.WorkQueue) {
		_, fault := channel.QueueDelete(queue.Name, false, false, false)
		err = errors.Join(err, fault)
	}
	for _, exchange := range t.Exchanges {
		err = errors.Join(err, channel.ExchangeDelete(exchange.Name, false, false))
	}
	return err
}
