package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// startTiers are those of each handler.
var startTiers = backoff.Schedule{time.Second, 5 * time.Second, 25 * time.Second}

// startAll starts instances of one app at the same time. The result stops them, and seconds is when the last of them
// consumes all topics.
func startAll(l layout, uri string, instances, topics int) (seconds float64, stop func(), err error) {
	var names []string
	for n := range topics {
		names = append(names, topicOf(n))
	}
	stops, began := make([]func(), instances), time.Now()
	err = claims.Together(instances, func(i int) (err error) {
		_, stops[i], err = handling{handlers: 1, concurrency: workers}.consume(l.config(uri, startTiers),
			func(*message.Message) error { return nil }, names...)
		return err
	})
	return time.Since(began).Seconds(), func() {
		_ = claims.Together(instances, func(i int) error {
			if stops[i] != nil {
				stops[i]()
			}
			return nil
		})
	}, err
}

// measureStart starts 100 instances of one app.
func measureStart(b *bench) error {
	instances, topics := b.Size(100, 10), b.Size(16, 4)
	for _, l := range []layout{perQueue, grouped} {
		err := b.in("start", func(uri string) error {
			spent := b.spentBy()
			seconds, stop, err := startAll(l, uri, instances, topics)
			_, ofBroker := spent(instances)
			defer stop()
			if err != nil {
				return err
			}
			b.note("%s: %d instances with %d handlers, %s µs of the broker for each", l.name, instances, topics,
				claims.Digits(ofBroker))
			b.claim("start_consuming_"+l.name, seconds)
			return allConsume(uri, instances, topics)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	return nil
}

func topicOf(n int) string { return work + "-" + strconv.Itoa(n) }

// allConsume compares the broker's consumers with those that were started.
func allConsume(uri string, instances, topics int) error {
	return with(uri, func(channel *amqp091.Channel) error {
		for n := range topics {
			queue, err := channel.QueueDeclarePassive(topicOf(n), true, false, false, false, nil)
			if err == nil && queue.Consumers != instances {
				err = fmt.Errorf("queue %s has %d consumers, %d instances were started", queue.Name, queue.Consumers,
					instances)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
