package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

const lateEvery = time.Second / 400 // few enough messages that they wait only on the tiers

// measureLateness measures the time from the failure to the next call, minus the delay.
func measureLateness(b *bench) error {
	mixed := []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second}
	if b.Short {
		mixed = mixed[:2]
	}
	for _, side := range []struct {
		claim   string
		consume func(uri string, l *ledger) (stop func(), err error)
	}{
		{"late_per_message_ttl_p99", consumeRecipe},
		{"late_tiers_per_queue_p99", consumeLate(mixed)},
	} {
		messages := b.Size(2_000, 200)
		l := newLedger(messages, func(i int) time.Duration { return mixed[i%len(mixed)] })
		l.calls = func(int) int { return 2 }
		l.collect = true
		err := b.in("lateness", func(uri string) error {
			stop, err := side.consume(uri, l)
			if err != nil {
				return err
			}
			defer stop()
			err = publishAll(uri, messages, lateEvery, func(i int) (string, string, amqp091.Publishing) {
				return "", work, byHand(idOf(i), 0)
			})
			if err != nil {
				return err
			}
			return l.wait(0)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", side.claim, err)
		}
		b.lateness(l, side.claim)
	}
	return nil
}

// lateness adds the 99th percentile of the lateness to a claim.
func (b *bench) lateness(l *ledger, claim string) {
	p99 := claims.Percentile(l.late, 0.99)
	b.note("%d messages, %v late in the median, at most %v", len(l.called), claims.Percentile(l.late, 0.5),
		l.late[len(l.late)-1])
	b.claim(claim, milliseconds(p99))
}

// consumeLate is the library: each failure requests a delay.
func consumeLate(tiers []time.Duration) func(uri string, l *ledger) (func(), error) {
	return func(uri string, ledger *ledger) (func(), error) {
		c := configOf(uri, backoff.Constant(time.Second, 1))
		c.Policy.ExtraTiers = tiers
		_, stop, err := handling{Concurrency: workers}.consume(c, func(msg *message.Message) error {
			if delay, again := ledger.call(msg.UUID); again {
				return backoff.RetryAfter(errMeasured, delay)
			}
			return nil
		}, work)
		return stop, err
	}
}

// consumeRecipe is the usual recipe: failed messages wait on one queue, each with a TTL of its own. The broker
// removes expired messages only from the head of the queue.
func consumeRecipe(uri string, l *ledger) (func(), error) {
	const waiting = work + ".waiting"
	err := with(uri, func(channel *amqp091.Channel) error {
		arguments := tierByHand(0, work)
		delete(arguments, "x-message-ttl")
		return errors.Join(declareQuorum(channel, work, nil), declareQuorum(channel, waiting, arguments))
	})
	if err != nil {
		return nil, err
	}
	p, err := newPipeline(uri)
	if err != nil {
		return nil, err
	}
	stop, err := consumeByHand(uri, work, workers, inFlight, func(d amqp091.Delivery) {
		delay, again := l.call(identity(d))
		if !again {
			_ = d.Ack(false)
			return
		}
		copied := byHand(identity(d), 1)
		copied.Expiration = strconv.FormatInt(delay.Milliseconds(), 10)
		if confirm, err := p.send("", waiting, copied); err == nil {
			p.ack(failure{d, confirm})
		}
	})
	return func() { stop(); p.close() }, err
}
