package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// A contender publishes one message, and waits until it is routed and confirmed. All callers call it at once.
type contender func(uri string) (publish, close func() error, err error)

// measurePublish compares the publisher with the alternatives: persistent messages to one durable queue.
func measurePublish(b *bench) error {
	for _, c := range []struct {
		claim   string
		against contender
		callers int
	}{
		{"loop_16", loop, 16},
		{"loop_256", loop, 256},
		{"watermill_amqp_pool0_16", watermillAMQP(0), 16},
		{"watermill_amqp_pool16_16", watermillAMQP(16), 16},
	} {
		sides := []contender{own, c.against}
		rates, err := b.turns(15, 2, func(side int, uri string) (float64, error) {
			return sides[side].measure(uri, c.callers, time.Duration(b.Size(1000, 300))*time.Millisecond)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", c.claim, err)
		}
		b.note("%s: %s messages a second against %s", c.claim, claims.Spread(rates[0], "%.0f"),
			claims.Spread(rates[1], "%.0f"))
		b.ratio(c.claim, rates[0], rates[1])
	}
	return nil
}

func (c contender) measure(uri string, callers int, duration time.Duration) (rate float64, err error) {
	err = with(uri, func(channel *amqp091.Channel) error {
		_, err := channel.QueueDeclare(work, true, false, false, false, nil)
		return err
	})
	if err != nil {
		return 0, err
	}
	publish, closeAll, err := c(uri)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	if _, err := publishFor(publish, callers, duration/10); err != nil { // warm up
		return 0, err
	}
	begin := time.Now()
	published, err := publishFor(publish, callers, duration)
	return float64(published) / time.Since(begin).Seconds(), err
}

func publishFor(publish func() error, callers int, duration time.Duration) (published int64, err error) {
	var total atomic.Int64
	began := time.Now()
	err = claims.Together(callers, func(int) error {
		for ; time.Since(began) < duration; total.Add(1) {
			if err := publish(); err != nil {
				return err
			}
		}
		return nil
	})
	return total.Load(), err
}

func own(uri string) (publish, close func() error, err error) {
	rabbit, err := config.Connect(config.Config{
		AMQP: amqp.NewDurableQueueConfig(uri), Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 1)},
	}, nil)
	if err != nil {
		return nil, nil, err
	}
	p := rabbit.Publisher()
	return func() error { return p.Publish(work, message.NewMessage(idOf(0), payload)) }, rabbit.Close, nil
}

// loop is what a developer would write by hand: one channel, deferred confirms. It does not detect unroutable messages.
func loop(uri string) (publish, close func() error, err error) {
	channel, end, err := open(uri)
	return func() error {
		confirm, err := channel.PublishWithDeferredConfirm("", work, true, false, byHand(idOf(0), 0))
		if err == nil && !confirm.Wait() {
			err = errors.New("a message was nacked")
		}
		return err
	}, end, err
}

func watermillAMQP(pool int) contender {
	return func(uri string) (publish, close func() error, err error) {
		config := amqp.NewDurableQueueConfig(uri)
		config.Publish.ConfirmDelivery = true
		config.Publish.ChannelPoolSize = pool
		config.TopologyBuilder = nothing{}
		p, err := amqp.NewPublisher(config, watermill.NopLogger{})
		if err != nil {
			return nil, nil, err
		}
		return func() error { return p.Publish(work, message.NewMessage(idOf(0), payload)) }, p.Close, nil
	}
}
