package main

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

const (
	work    = "orders" // the work queue, where there is one
	workers = 16
)

var errMeasured = errors.New("measured")

// configOf is the library's configuration.
func configOf(uri string, schedule backoff.Schedule) config.Config {
	return config.Config{AMQP: amqp.NewDurableQueueConfig(uri), Policy: retry.Policy{Schedule: schedule}}
}

func topologyOf(c config.Config, queue string) (topology.Topology, error) {
	builder, err := config.NewBuilder(c)
	if err != nil {
		return topology.Topology{}, err
	}
	return builder.Topology(queue), nil
}

// declare declares the work queues, with everything that their retries need.
func declare(uri string, c config.Config, queues ...string) error {
	return with(uri, func(channel *amqp091.Channel) error {
		for _, queue := range queues {
			t, err := topologyOf(c, queue)
			if err == nil {
				err = t.Declare(channel)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// A handling is how a work queue is consumed. Without Concurrency that is by the parts around watermill-amqp's own
// subscriber.
type handling retry.Options

// consume handles the messages of queues until stop. It returns when all handlers consume.
func (h handling) consume(
	c config.Config, handle func(msg *message.Message) error, queues ...string,
) (rabbit retry.Connection, stop func(), err error) {
	router := message.NewDefaultRouter(watermill.NopLogger{})
	closeAll := func() error { return nil }
	if h.Concurrency == 0 {
		closeAll, err = parts(router, c, handle, queues[0])
	} else if rabbit, err = config.Connect(c, nil); err == nil {
		closeAll = rabbit.Close
		for _, queue := range queues {
			rabbit.AddConsumerHandler(router, queue, queue, handle, retry.Options(h))
		}
	}
	if err != nil {
		return nil, nil, err
	}
	stopRouter, err := broker.Run(router)
	if err != nil {
		return nil, nil, errors.Join(err, closeAll())
	}
	return rabbit, func() { _ = errors.Join(stopRouter(), closeAll()) }, nil
}

// parts are the library around watermill-amqp's own subscriber, which has one message in flight.
func parts(
	router *message.Router, c config.Config, handle message.NoPublishHandlerFunc, queue string,
) (closeAll func() error, err error) {
	builder, err := config.NewBuilder(c)
	if err != nil {
		return nil, err
	}
	tiered, err := builder.NewTieredRetry(nil)
	if err != nil {
		return nil, err
	}
	stock, err := amqp.NewSubscriber(builder.SubscriberConfig(), watermill.NopLogger{}) // the router closes it
	if err != nil {
		return nil, err
	}
	router.AddConsumerHandler(queue, queue, stock, handle).AddMiddleware(tiered)
	return builder.Close, nil
}

// nothing declares nothing: queues exist with arguments that watermill-amqp does not declare.
type nothing struct{}

func (nothing) BuildTopology(*amqp091.Channel, string, string, amqp.Config, watermill.LoggerAdapter) error {
	return nil
}

func (nothing) ExchangeDeclare(*amqp091.Channel, string, amqp.Config) error { return nil }

// newLedger is for messages that wait on RabbitMQ.
func newLedger(messages int, delay func(message int) time.Duration) *claims.Ledger {
	return claims.NewLedger(messages, delay, broker.Least)
}

func failuresOf(msg *message.Message) int {
	record, _ := retry.ReadRecord(msg.Metadata)
	return record.Failures
}
