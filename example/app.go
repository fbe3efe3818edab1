package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/publisher"
)

const (
	handlers     = 4 // on one queue: each bills one order at a time
	startTimeout = 30 * time.Second
)

// app is an ordinary Watermill app: a router whose handlers bill the orders of one queue.
type app struct {
	router     *message.Router
	subscriber *amqp.Subscriber
	failures   *publisher.Publisher
	topology   config.Topology
	stopped    chan error // what the router's Run returned
}

// newApp connects the app. The lines with a number are all that the library asks for.
func newApp(opts options, queue, prefix string, bill message.NoPublishHandlerFunc, j *journal, logger watermill.LoggerAdapter,
) (*app, error) {
	router := message.NewDefaultRouter(logger)
	rabbitmq := amqp.NewDurableQueueConfig(opts.uri)

	// 1. Your own configuration and a schedule go in. Leave Prefix out: it is here so that two demos never meet.
	rabbit, err := config.NewBuilder(config.BuilderConfig{AMQP: rabbitmq, Schedule: opts.schedule, Prefix: prefix})
	if err != nil {
		return nil, err
	}

	// 2. The subscriber is Watermill's own; the builder's configuration makes it declare the retry queues, too.
	subscriber, err := amqp.NewSubscriber(rabbit.SubscriberConfig(), logger)
	if err != nil {
		return nil, err
	}

	// 3. The publisher of failures tells the truth: no error means that the broker has the message.
	failures, err := rabbit.NewPublisher(logger)
	if err != nil {
		return nil, errors.Join(err, subscriber.Close())
	}

	// 4. The middleware decides what becomes of a message that failed. The hooks are optional: here they draw the table.
	retries := rabbit.TieredRetryConfig(failures)
	retries.OnRetry, retries.OnDeadLetter = j.failed, j.died
	retry, err := middleware.NewTieredRetry(retries, logger)
	if err != nil {
		return nil, errors.Join(err, subscriber.Close(), failures.Close())
	}

	// 5. It goes on the handler, before all other middlewares.
	for n := range handlers {
		name := fmt.Sprintf("billing-%d", n+1)
		router.AddConsumerHandler(name, queue, subscriber, j.observe(bill)).AddMiddleware(retry.Middleware)
	}

	return &app{
		router: router, subscriber: subscriber, failures: failures, topology: rabbit.Topology(queue),
		stopped: make(chan error, 1),
	}, nil
}

// start returns once the handlers consume, and so once the queues exist.
func (a *app) start() error {
	go func() { a.stopped <- a.router.Run(context.Background()) }()
	select {
	case <-a.router.Running():
		return nil
	case err := <-a.stopped:
		a.stopped <- err
		return errors.New("the router does not start")
	case <-time.After(startTimeout):
		return fmt.Errorf("the router does not start within %v", startTimeout)
	}
}

// close stops the router first: until then its handlers may have failures to publish.
func (a *app) close() error {
	var err error
	select {
	case err = <-a.stopped: // it did not start, or stopped by itself
	default:
		err = errors.Join(a.router.Close(), <-a.stopped)
	}
	return errors.Join(err, a.subscriber.Close(), a.failures.Close())
}
