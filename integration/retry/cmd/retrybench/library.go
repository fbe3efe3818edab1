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
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// library is this library, with a number of handlers of one work queue. A concurrency of 0 is the parts around watermill-amqp's own
// subscriber, any other is Connect.
func library(name string, handlers, concurrency int) side {
	return libraryWith(name, handlers, concurrency, options)
}

func libraryWith(name string, handlers, concurrency int, options func(uri string) config.BuilderConfig) side {
	wire := parts
	if concurrency > 0 {
		wire = func(c config.BuilderConfig) (adder, func(), error) { return connectWith(c, concurrency) }
	}
	return wired(name, handlers, options, wire)
}

func wired(
	name string, handlers int, options func(uri string) config.BuilderConfig, wire func(config.BuilderConfig) (adder, func(), error),
) side {
	return side{
		name:    name,
		queues:  func(work string) topology.Topology { return newBuilder(options("amqp://localhost/")).Topology(work) },
		declare: func(channel *amqp091.Channel, t topology.Topology) error { return t.Declare(channel) },
		consume: func(uri, work string, a *app) (func(), error) {
			add, closeAll, err := wire(options(uri))
			if err != nil {
				return nil, err
			}
			router := message.NewDefaultRouter(watermill.NopLogger{})
			for i := range handlers {
				add(router, fmt.Sprint(i), work, func(msg *message.Message) error { return a.handle(msg.UUID) })
			}
			stop, err := run(router)
			return func() { stop(); closeAll() }, err
		},
	}
}

// adder adds a handler with retries to a router.
type adder func(router *message.Router, name, topic string, handler message.NoPublishHandlerFunc)

func connectWith(c config.BuilderConfig, concurrency int, observers ...retry.Observer) (adder, func(), error) {
	rabbit, err := config.Connect(c, nil, middleware.HandlerOptions{Concurrency: concurrency})
	if err != nil {
		return nil, nil, err
	}
	rabbit.Observe(observers...)
	return func(router *message.Router, name, topic string, handler message.NoPublishHandlerFunc) {
		rabbit.AddConsumerHandler(router, name, topic, handler)
	}, func() { _ = rabbit.Close() }, nil
}

func parts(c config.BuilderConfig) (adder, func(), error) {
	builder := newBuilder(c)
	failures, err := builder.NewPublisher(nil)
	if err != nil {
		return nil, nil, err
	}
	tiered, err := middleware.NewTieredRetry(builder.TieredRetryConfig(failures), nil)
	if err != nil {
		return nil, nil, err
	}
	stock, err := amqp.NewSubscriber(builder.SubscriberConfig(), watermill.NopLogger{}) // the router closes it
	return func(router *message.Router, name, topic string, handler message.NoPublishHandlerFunc) {
		router.AddConsumerHandler(name, topic, stock, handler).AddMiddleware(tiered.Middleware)
	}, func() { _ = failures.Close() }, err
}

// prefix belongs to this process: another one may measure on the same broker.
var prefix = fmt.Sprintf("retry-%06x", rand.N(1<<24))

func options(uri string) config.BuilderConfig {
	return config.BuilderConfig{AMQP: amqp.NewDurableQueueConfig(uri), Schedule: backoff.Constant(tier, tries-1), Settings: rabbitmq.Settings{Prefix: prefix}}
}

func newBuilder(c config.BuilderConfig) *config.Builder {
	builder, err := config.NewBuilder(c)
	if err != nil {
		panic(err) // the configuration is constant
	}
	return builder
}
