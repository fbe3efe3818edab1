package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

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

const (
	handlers = 16
	rate     = 200 // messages per second, each fails twice: few enough that they wait only on the tiers
)

// measureLateness runs an app whose messages fail on both tiers. The lateness is the time from a failure to the next call, minus
// the delay.
func measureLateness(uri string, duration time.Duration) ([]string, error) {
	name := "retrybench_" + watermill.NewShortUUID()
	schedule := backoff.Schedule{500 * time.Millisecond, time.Second}
	builder, err := config.NewBuilder(config.BuilderConfig{AMQP: amqp.NewDurableQueueConfig(uri), Schedule: schedule, Settings: rabbitmq.Settings{Prefix: name}})
	if err != nil {
		return nil, err
	}
	topology := builder.Topology(name + ".orders")
	defer remove(uri, topology)
	failures, err := builder.NewPublisher(nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = failures.Close() }()
	tiered, err := middleware.NewTieredRetry(builder.TieredRetryConfig(failures), nil)
	if err != nil {
		return nil, err
	}
	subscriber, err := amqp.NewSubscriber(builder.SubscriberConfig(), watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router := message.NewDefaultRouter(watermill.NopLogger{})

	messages := max(int(duration.Seconds()*rate), 1)
	var mu sync.Mutex
	var late []float64
	failedAt := map[string]time.Time{}
	done := make(chan struct{})
	finished := 0
	for i := range handlers {
		router.AddConsumerHandler(fmt.Sprint(i), topology.WorkQueue.Name, subscriber, func(msg *message.Message) error {
			now := time.Now()
			record, _ := retry.ReadRecord(msg.Metadata)
			mu.Lock()
			defer mu.Unlock()
			if record.Failures > 0 {
				wait := now.Sub(failedAt[msg.UUID]) - schedule[record.Failures-1]
				late = append(late, float64(wait.Microseconds())/1000)
			}
			if record.Failures == len(schedule) {
				if finished++; finished == messages {
					close(done)
				}
				return nil
			}
			failedAt[msg.UUID] = time.Now()
			return errors.New("measured")
		}).AddMiddleware(tiered.Middleware)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-stopped:
		return nil, err
	}
	defer func() { _ = router.Close(); <-stopped }()
	if err := feed(uri, topology.WorkQueue.Name, messages); err != nil {
		return nil, err
	}
	select {
	case <-done:
	case <-time.After(duration + time.Minute):
		return nil, fmt.Errorf("%d of %d messages came back", finished, messages)
	}
	slices.Sort(late)
	fmt.Printf("\nlateness over tiers of %v, %d retries, %d handlers: p50 %.1f ms, p99 %.1f ms, max %.1f ms\n",
		schedule, len(late), handlers, percentile(late, 0.5), percentile(late, 0.99), late[len(late)-1])
	return []string{claim("lateness_p99", "ms", percentile(late, 0.99), 50)}, nil
}

// feed publishes at a steady rate.
func feed(uri, queue string, messages int) error {
	publisher, err := amqp.NewPublisher(amqp.NewDurableQueueConfig(uri), watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer func() { _ = publisher.Close() }()
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	for range messages {
		<-tick.C
		if err := publisher.Publish(queue, message.NewMessage(watermill.NewUUID(), make([]byte, 512))); err != nil {
			return err
		}
	}
	return nil
}

func remove(uri string, t topology.Topology) {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return
	}
	defer func() { _ = connection.Close() }()
	channel, err := connection.Channel()
	if err != nil {
		return
	}
	for _, queue := range append([]topology.Queue{t.WorkQueue}, t.Queues...) {
		_, _ = channel.QueueDelete(queue.Name, false, false, false)
	}
	for _, exchange := range t.Exchanges {
		_ = channel.ExchangeDelete(exchange.Name, false, false)
	}
}
