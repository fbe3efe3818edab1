package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

const lateEvery = time.Second / 400 // few enough messages that they wait only on the tiers

// mixed are the delays that the messages request in turn.
var mixed = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second}

// measureLateness measures the time from the failure to the next call, minus the delay.
func measureLateness(b *bench) error {
	delays := mixed[:b.Size(len(mixed), 2)]
	for _, side := range []struct {
		claim   string
		consume func(uri string, l *claims.Ledger) (stop func(), err error)
	}{
		{"late_per_message_ttl_p99", consumeRecipe}, {"late_tiers_per_queue_p99", consumeLate},
	} {
		messages := b.Size(2_000, 200)
		l := newLedger(messages, func(i int) time.Duration { return delays[i%len(delays)] })
		err := b.in("lateness", func(uri string) error {
			stop, err := side.consume(uri, l)
			if err != nil {
				return err
			}
			defer stop()
			err = publishAll(uri, messages, lateEvery, func(i int) (string, string, amqp091.Publishing) {
				return "", work, byHand(claims.ID(i), 0)
			})
			if err != nil {
				return err
			}
			return l.Wait()
		})
		if err != nil {
			return fmt.Errorf("%s: %w", side.claim, err)
		}
		fmt.Printf("%d messages, %v late in the median\n", messages, claims.Percentile(l.Late, 0.5))
		b.claim(side.claim, milliseconds(claims.Percentile(l.Late, 0.99)))
	}
	return nil
}

// consumeLate is the library: each failure requests a delay.
func consumeLate(uri string, l *claims.Ledger) (func(), error) {
	c := configOf(uri, backoff.Constant(time.Second, 1))
	c.Policy.ExtraTiers = mixed
	_, stop, err := handling{Concurrency: workers}.consume(c, func(msg *message.Message) error {
		if delay, fails := l.Call(msg.UUID, failuresOf(msg)); fails {
			return backoff.RetryAfter(errMeasured, delay)
		}
		return nil
	}, work)
	return stop, err
}

// consumeRecipe is the usual recipe: failed messages wait on one queue, each with a TTL of its own. The broker
// removes expired messages only from the head of the queue.
func consumeRecipe(uri string, l *claims.Ledger) (func(), error) {
	err := with(uri, func(channel *amqp091.Channel) error {
		return errors.Join(declareQuorum(channel, work, nil), declareQuorum(channel, waiting, tierByHand(0, work)))
	})
	if err != nil {
		return nil, err
	}
	p, err := newPipeline(uri)
	if err != nil {
		return nil, err
	}
	stop, err := consumeByHand(uri, work, workers, inFlight, func(d amqp091.Delivery) {
		if delay, fails := l.Call(identity(d), tries(d)); !fails {
			_ = d.Ack(false)
		} else if f, err := p.fail(d, delay); err == nil {
			p.ack(f)
		}
	})
	return func() { stop(); p.close() }, err
}
