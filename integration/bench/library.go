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
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
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

// route is where the copies of a work queue for a tier are published to.
func route(t topology.Topology, tier time.Duration) (exchange, key string) {
	return t.Exchanges[0].Name, backoff.Tier(tier).String() + "." + t.WorkQueue.Name
}

// copyOf returns a copy as the library publishes it: one message fails, and its copy is taken from the exchange.
func (s *server) copyOf(queue string) (copied amqp091.Publishing, err error) {
	const tier = 100 * time.Millisecond
	err = s.in("copy", func(uri string) error {
		c := configOf(uri, backoff.Constant(tier, 3))
		t, err := topologyOf(c, queue)
		if err != nil {
			return err
		}
		ledger := newLedger(1, always(tier))
		ledger.calls = func(int) int { return 2 }
		_, stop, err := handling{Concurrency: 1}.consume(c, ledger.retry, queue)
		if err != nil {
			return err
		}
		defer stop()
		return with(uri, func(channel *amqp091.Channel) error {
			exchange, key := route(t, tier)
			_, err := channel.QueueDeclare("copies", true, false, false, false, nil)
			err = errors.Join(err, channel.QueueBind("copies", key, exchange, false, nil), fill(uri, queue, 1),
				ledger.wait(0))
			if err != nil {
				return err
			}
			d, found, err := channel.Get("copies", true)
			if err == nil && !found {
				err = errors.New("the copy was not captured")
			}
			copied = amqp091.Publishing{
				Headers: d.Headers, DeliveryMode: d.DeliveryMode, ContentType: d.ContentType, Body: d.Body,
			}
			return err
		})
	})
	return copied, err
}

// copies returns a copy of a message, and where it is published to.
type copies func(message int, tier time.Duration) (exchange, key string, p amqp091.Publishing)

// copiesByHand declares a work queue with tiers. They need no exchange of their own, and dead-letter as safely as the
// library's.
func (*bench) copiesByHand(uri string, tiers ...time.Duration) (copies, error) {
	queueOf := func(tier time.Duration) string { return work + "." + tier.String() }
	err := with(uri, func(channel *amqp091.Channel) error {
		faults := []error{declareQuorum(channel, work, nil)}
		for _, tier := range tiers {
			arguments := tierByHand(tier, work)
			arguments["x-dead-letter-strategy"], arguments["x-overflow"] = "at-least-once", "reject-publish"
			faults = append(faults, declareQuorum(channel, queueOf(tier), arguments))
		}
		return errors.Join(faults...)
	})
	return func(message int, tier time.Duration) (string, string, amqp091.Publishing) {
		return "", queueOf(tier), byHand(idOf(message), 1)
	}, err
}

// copies declares a work queue with tiers as the library does.
func (b *bench) copies(uri string, tiers ...time.Duration) (copies, error) {
	c := configOf(uri, tiers)
	t, err := topologyOf(c, work)
	if err != nil {
		return nil, err
	}
	copied, err := b.copyOf(work)
	return func(message int, tier time.Duration) (string, string, amqp091.Publishing) {
		exchange, key := route(t, tier)
		return exchange, key, again(copied, message)
	}, errors.Join(err, declare(uri, c, work))
}

// again is the same copy with another identity.
func again(copied amqp091.Publishing, message int) amqp091.Publishing {
	headers := amqp091.Table{}
	for name, value := range copied.Headers {
		headers[name] = value
	}
	headers[publisher.UUIDHeader] = idOf(message)
	copied.Headers = headers
	return copied
}

// retry is a handler that fails as the ledger says.
func (l *ledger) retry(msg *message.Message) error {
	if _, again := l.call(msg.UUID); again {
		return errMeasured
	}
	return nil
}
