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
	c := grouped.config(uri, backoff.Constant(neighbourTier, 1))
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

func full10(kind string) amqp091.Table {
	return amqp091.Table{"x-queue-type": kind, "x-max-length": int64(10), "x-overflow": "reject-publish"}
}

// measureNeighbours measures how late the retries of good work queues are, while another work queue of their group
// takes no messages.
func measureNeighbours(b *bench) error {
	for _, fault := range []struct {
		claim string
		bad   amqp091.Table // nil: deleted
	}{
		{"neighbours_deleted", nil},
		{"neighbours_full_quorum", full10(amqp091.QueueTypeQuorum)},
		{"neighbours_full_classic", full10(amqp091.QueueTypeClassic)},
	} {
		err := b.in("neighbours", func(uri string) error { return b.measureNeighbour(uri, fault.claim, fault.bad) })
		if err != nil {
			return fmt.Errorf("%s: %w", fault.claim, err)
		}
	}
	return nil
}

// measureNeighbour lets as many bad messages as good ones wait on one tier, one after the other. Half of the good
// queues are classic queues, which have an inbox.
func (b *bench) measureNeighbour(uri, claim string, bad amqp091.Table) error {
	const queues, badQueue = 10, "bad"
	messages := b.Size(1_000, 200)
	c := neighbourConfig(uri, bad)
	t, err := topologyOf(c, badQueue)
	if err == nil {
		err = declare(uri, c, badQueue)
	}
	if err == nil && bad == nil {
		err = with(uri, func(channel *amqp091.Channel) error {
			_, err := channel.QueueDelete(badQueue, false, false, false)
			return err
		})
	}
	if err != nil {
		return err
	}
	l := newLedger(messages, always(neighbourTier))
	l.collect = true
	var good, quorum, classic []string
	for i := range queues {
		good = append(good, fmt.Sprintf("good-%d", i))
	}
	quorum, classic = good[:queues/2], good[queues/2:]
	for _, kind := range []struct {
		arguments amqp091.Table
		names     []string
	}{{nil, quorum}, {amqp091.Table{"x-queue-type": amqp091.QueueTypeClassic}, classic}} {
		_, stop, err := handling{handlers: 1, concurrency: workers}.consume(neighbourConfig(uri, kind.arguments),
			l.onceFailed, kind.names...)
		if err != nil {
			return err
		}
		defer stop()
	}
	exchange, key := route(t, neighbourTier)
	orphans := map[string]bool{}
	err = publishAll(uri, 2*messages, 0, func(i int) (string, string, amqp091.Publishing) {
		if i%2 == 0 {
			return "", good[i/2%queues], byHand(idOf(i/2), 0)
		}
		id := idOf(messages + i)
		orphans[id] = true
		return exchange, key, byHand(id, 0)
	})
	if err = errors.Join(err, l.wait(0)); err != nil {
		return err
	}
	b.lateness(l, claim)
	if bad != nil {
		return nil
	}
	return with(uri, func(channel *amqp091.Channel) error { return drain(channel, "retry.orphans", orphans) })
}
