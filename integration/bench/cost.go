package main

import (
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

const costTier = 100 * time.Millisecond

// copies returns a copy of a message, and where it is published to.
type copies func(message int) (exchange, key string, p amqp091.Publishing)

// A costSide is a topology with its copies. Publisher and consumer are the same on all sides, so that only the
// broker's work differs.
type costSide struct {
	copies
	pipeline *pipeline
	ledger   atomic.Pointer[claims.Ledger]
}

// measureCost sets up both sides first. Then each gets its batch in turn. The broker has to be on this machine (Linux).
func measureCost(b *bench) error {
	names := []string{"tiers of each work queue", "by hand"}
	sides := make([]*costSide, len(names))
	for i, declare := range []func(uri string) (copies, error){
		func(uri string) (copies, error) { return b.copies(uri, costTier) }, copiesByHand,
	} {
		uri, remove, err := b.vhost("cost")
		if err != nil {
			return err
		}
		defer remove()
		sides[i] = &costSide{}
		stop, err := sides[i].start(uri, declare)
		if err != nil {
			return fmt.Errorf("%s: %w", names[i], err)
		}
		defer stop()
	}
	if b.process == 0 {
		fmt.Println("the broker's process is not on this machine: its processor time is not known")
		return nil
	}
	spent, err := b.Compare("µs of the broker for one retry", 20, names, func(i int) (float64, error) {
		return sides[i].measure(b)
	})
	if err == nil {
		b.ratio("cost_retry", spent[0], spent[1])
	}
	return err
}

func (side *costSide) start(uri string, declare func(uri string) (copies, error)) (stop func(), err error) {
	if side.copies, err = declare(uri); err != nil {
		return nil, err
	}
	if side.pipeline, err = newPipeline(uri); err != nil {
		return nil, err
	}
	stopConsumer, err := consumeByHand(uri, work, 1, inFlight, func(d amqp091.Delivery) {
		side.ledger.Load().Call(identity(d), 1)
		_ = d.Ack(false)
	})
	return func() { stopConsumer(); side.pipeline.close() }, err
}

// measure publishes a batch and waits until all of it has come back. It returns the broker's processor time for a
// message, in µs.
func (side *costSide) measure(b *bench) (float64, error) {
	batch := b.Size(2_000, 500)
	l := newLedger(batch, claims.Always(costTier))
	side.ledger.Store(l)
	spent := b.spentBy()
	for i := range batch {
		l.Fail(claims.ID(i))
		if err := side.pipeline.publish(side.copies(i)); err != nil {
			return 0, err
		}
	}
	err := errors.Join(side.pipeline.flush(), l.Wait())
	_, ofBroker := spent(batch)
	return ofBroker, err
}

// copiesByHand declares a work queue with a tier. It needs no exchange of its own, and dead-letters as safely as the
// library's.
func copiesByHand(uri string) (copies, error) {
	arguments := tierByHand(costTier, work)
	arguments["x-dead-letter-strategy"], arguments["x-overflow"] = "at-least-once", "reject-publish"
	err := with(uri, func(channel *amqp091.Channel) error {
		return errors.Join(declareQuorum(channel, work, nil), declareQuorum(channel, waiting, arguments))
	})
	return func(message int) (string, string, amqp091.Publishing) {
		return "", waiting, byHand(claims.ID(message), 1)
	}, err
}

// copies declares a work queue with a tier as the library does.
func (b *bench) copies(uri string, wait time.Duration) (copies, error) {
	c := configOf(uri, backoff.Schedule{wait})
	t, err := topologyOf(c, work)
	if err != nil {
		return nil, err
	}
	copied, err := b.copied()
	return func(message int) (string, string, amqp091.Publishing) {
		again := copied
		again.Headers = maps.Clone(copied.Headers)
		again.Headers[publisher.UUIDHeader] = claims.ID(message)
		return t.Exchanges[0].Name, naming.RetryKey(work, backoff.Tier(wait)), again
	}, errors.Join(err, declare(uri, c, work))
}

// copied returns a copy as the library publishes it: one message fails, and its copy is taken from the tier.
func (b *bench) copied() (copied amqp091.Publishing, err error) {
	err = b.in("copy", func(uri string) error {
		c := configOf(uri, backoff.Schedule{time.Hour})
		_, stop, err := handling{Concurrency: 1}.consume(c, func(*message.Message) error { return errMeasured }, work)
		if err != nil {
			return err
		}
		defer stop()
		if err := fill(uri, work, 1); err != nil {
			return err
		}
		return with(uri, func(channel *amqp091.Channel) error {
			tier := naming.Default.TierQueue(work, backoff.Tier(time.Hour))
			for deadline := time.Now().Add(claims.Patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				d, found, err := channel.Get(tier, true)
				if found || err != nil {
					copied = amqp091.Publishing{
						Headers: d.Headers, DeliveryMode: d.DeliveryMode, ContentType: d.ContentType, Body: d.Body,
					}
					return err
				}
			}
			return errors.New("there is no copy on the tier")
		})
	})
	return copied, err
}
