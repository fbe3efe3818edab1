package main

import (
	"fmt"
	"math/rand/v2"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// library is this library, with a number of handlers of one work queue. A concurrency of 0 is watermill-amqp's own subscriber,
// any other the library's.
func library(name string, handlers, concurrency int) side {
	return side{
		name:    name,
		queues:  func(work string) topology.Topology { return newBuilder("amqp://localhost/").Topology(work) },
		declare: func(channel *amqp091.Channel, t topology.Topology) error { return t.Declare(channel) },
		consume: func(uri, work string, a *app) (func(), error) {
			builder := newBuilder(uri)
			failures, err := builder.NewPublisher(nil)
			if err != nil {
				return nil, err
			}
			retry, err := middleware.NewTieredRetry(builder.TieredRetryConfig(failures), nil)
			if err != nil {
				return nil, err
			}
			source, closeSource, err := subscribe(uri, builder, concurrency)
			if err != nil {
				return nil, err
			}
			router := message.NewDefaultRouter(watermill.NopLogger{})
			for i := range handlers {
				router.AddConsumerHandler(fmt.Sprint(i), work, source, func(msg *message.Message) error { return a.handle(msg.UUID) }).
					AddMiddleware(retry.Middleware)
			}
			stop, err := run(router)
			return func() { stop(); closeSource(); _ = failures.Close() }, err
		},
	}
}

// prefix belongs to this process: another one may measure on the same broker.
var prefix = fmt.Sprintf("retry-%06x", rand.N(1<<24))

func newBuilder(uri string) *config.Builder {
	app := amqp.NewDurableQueueConfig(uri)
	builder, err := config.NewBuilder(config.BuilderConfig{AMQP: app, Schedule: backoff.Constant(tier, tries-1), Prefix: prefix})
	if err != nil {
		panic(err) // the configuration is constant
	}
	return builder
}

// subscribe wires the library's own subscriber with the parts of the builder.
func subscribe(uri string, builder *config.Builder, concurrency int) (message.Subscriber, func(), error) {
	if concurrency == 0 {
		stock, err := amqp.NewSubscriber(builder.SubscriberConfig(), watermill.NopLogger{})
		return stock, func() {}, err // the router closes it
	}
	connection, err := subscriber.Open(subscriber.ConnectionConfig{URI: uri}, nil)
	if err != nil {
		return nil, nil, err
	}
	parts := builder.SubscriberConfig()
	own, err := subscriber.NewSubscriber(connection, subscriber.Config{
		QueueOf:     parts.Queue.GenerateName,
		Declare:     func(channel *amqp091.Channel, topic string) error { return builder.Topology(topic).Declare(channel) },
		Unmarshal:   parts.Marshaler.Unmarshal,
		Concurrency: concurrency,
	}, nil)
	return own, func() { _ = connection.Close() }, err
}
