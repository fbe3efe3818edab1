package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

const neighbourTier = 5 * time.Second

// neighbourConfig is a group whose work queues have these arguments.
func neighbourConfig(uri string, arguments amqp091.Table) config.Config {
	c := configOf(uri, backoff.Constant(neighbourTier, 1))
	c.Policy.TierGroup, c.Policy.ExtraTiers = "shop", c.Policy.Schedule // without the ladder
	c.AMQP.Queue.Arguments = arguments
	c.AMQP.Connection.Reconnect = amqp.DefaultReconnectConfig()
	c.AMQP.Connection.Reconnect.BackoffMaxInterval = time.Second
	return c
}

// onceFailed is a handler that fails at the first delivery of each message, and again where its copy was not published.
func (l *ledger) onceFailed(msg *message.Message) error {
	if record, _ := retry.ReadRecord(msg.Metadata); record.Failures == 0 && l.fails(msg.UUID) {
		return errMeasured
	}
	l.call(msg.UUID)
	return nil
}

// measureNeighbours measures how late the retries of good work queues are, while another work queue of their group is
// full. As many bad messages as good ones wait on one tier, one after the other. Half of the good queues are classic
// queues, which have an inbox.
func measureNeighbours(b *bench) error {
	return b.in("neighbours", func(uri string) error {
		const queues, badQueue = 10, "bad"
		messages := b.Size(1_000, 200)
		c := neighbourConfig(uri, amqp091.Table{
			"x-queue-type": amqp091.QueueTypeQuorum, "x-max-length": int64(10), "x-overflow": "reject-publish",
		})
		t, err := topologyOf(c, badQueue)
		if err = errors.Join(err, declare(uri, c, badQueue)); err != nil {
			return err
		}
		l := newLedger(messages, always(neighbourTier))
		l.collect = true
		var good []string
		for i := range queues {
			good = append(good, fmt.Sprintf("good-%d", i))
		}
		for i, arguments := range []amqp091.Table{nil, {"x-queue-type": amqp091.QueueTypeClassic}} {
			_, stop, err := handling{Concurrency: workers}.consume(neighbourConfig(uri, arguments),
				l.onceFailed, good[i*queues/2:(i+1)*queues/2]...)
			if err != nil {
				return err
			}
			defer stop()
		}
		exchange, key := route(t, neighbourTier)
		err = publishAll(uri, 2*messages, 0, func(i int) (string, string, amqp091.Publishing) {
			if i%2 == 0 {
				return "", good[i/2%queues], byHand(idOf(i/2), 0)
			}
			return exchange, key, byHand(idOf(messages+i), 0)
		})
		if err = errors.Join(err, l.wait(0)); err == nil {
			b.lateness(l, "neighbours_full_quorum")
		}
		return err
	})
}
