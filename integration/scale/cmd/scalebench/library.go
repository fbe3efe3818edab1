package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// A layout is an arrangement of tiers.
type layout struct {
	name      string
	shared    bool // work queues share tiers
	configure func(*config.BuilderConfig)
}

var (
	perQueue = layout{name: "per queue", configure: func(*config.BuilderConfig) {}}
	grouped  = layout{name: "grouped", shared: true, configure: func(c *config.BuilderConfig) {
		c.TierGroup, c.ExtraTiers = "shop", []time.Duration{} // without the ladder
	}}

	// layouts are those that are compared.
	layouts = []layout{perQueue, grouped}
)

// config is the library's configuration with a layout.
func (l layout) config(uri string, schedule backoff.Schedule) config.BuilderConfig {
	c := config.BuilderConfig{AMQP: amqp.NewDurableQueueConfig(uri), Schedule: schedule}
	l.configure(&c)
	return c
}

// A copier publishes copies as the retry middleware does, through the library's publisher of failures.
type copier struct {
	failures message.Publisher
	close    func()
	config   middleware.TieredRetryConfig
}

func newCopier(c config.BuilderConfig) (*copier, error) {
	builder, err := config.NewBuilder(c)
	if err != nil {
		return nil, err
	}
	failures, err := builder.NewPublisher(nil)
	if err != nil {
		return nil, err
	}
	return &copier{failures: failures, close: func() { _ = failures.Close() }, config: builder.TieredRetryConfig(failures)}, nil
}

// publish publishes the copy of a message that has failed once.
func (c *copier) publish(id, topic string, tier backoff.Tier, r retry.Record) error {
	to, err := c.config.GenerateRetryDestination(middleware.RetryDestinationParams{Topic: topic, Handler: r.Handler, Tier: tier, Failures: r.Failures})
	if err != nil {
		return err
	}
	msg := message.NewMessage(id, payload)
	r.Write(msg.Metadata)
	return c.failures.Publish(to.Topic, msg)
}

// callers publish at the same time.
const callers = 256

// publishAll calls publish for each message, by several callers at the same time, in about their order.
func publishAll(messages int, publish func(message int) error) error {
	var next atomic.Int64
	var group sync.WaitGroup
	failed := make(chan error, callers)
	for range min(callers, messages) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < messages; i = int(next.Add(1)) - 1 {
				if err := publish(i); err != nil {
					failed <- fmt.Errorf("message %d: %w", i, err)
					return
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// runRouter runs a router until stop. It returns when all handlers consume.
func runRouter(router *message.Router) (stop func(), err error) {
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
		return func() { _ = router.Close(); <-stopped }, nil
	case err := <-stopped:
		return nil, fmt.Errorf("the router has stopped: %w", err)
	}
}

// consume handles the messages of a topic, over the library's own subscriber.
func consume(c config.BuilderConfig, topic string, handler message.NoPublishHandlerFunc, options middleware.HandlerOptions) (stop func(), err error) {
	rabbit, err := config.Connect(c, nil, options)
	if err != nil {
		return nil, err
	}
	router := message.NewDefaultRouter(watermill.NopLogger{})
	rabbit.AddConsumerHandler(router, "billing", topic, handler)
	stopRouter, err := runRouter(router)
	if err != nil {
		_ = rabbit.Close()
		return nil, err
	}
	return func() { stopRouter(); _ = rabbit.Close() }, nil
}

// declareTopics declares the work queues of topics, with everything that their retries need.
func declareTopics(c config.BuilderConfig, uri string, topics ...string) error {
	builder, err := config.NewBuilder(c)
	if err != nil {
		return err
	}
	return with(uri, func(channel *amqp091.Channel) error {
		for _, topic := range topics {
			if err := builder.Topology(topic).Declare(channel); err != nil {
				return err
			}
		}
		return nil
	})
}
