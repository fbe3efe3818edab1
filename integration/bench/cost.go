package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
)

const costTier = 100 * time.Millisecond

// A costSide is a topology with its copies. Publisher and consumer are the same on all sides, so that only the
// broker's work differs.
type costSide struct {
	name string
	// setUp declares the topology and returns where copies are published to, and one of them.
	setUp func(b *bench, uri string) (exchange, key string, copied amqp091.Publishing, err error)

	exchange, key string
	copied        amqp091.Publishing
	pipeline      *pipeline
	ledger        atomic.Pointer[ledger]
}

// limited is a group whose work queue has an inbox.
var limited = layout{name: "grouped, with inbox", configure: func(c *config.Config) {
	grouped.configure(c)
	c.AMQP.Queue.Arguments = amqp091.Table{"x-max-length": 1_000_000, "x-overflow": "reject-publish"}
}}

// measureCost sets up all sides first. Then each gets its batch in turn. It needs a broker on the same machine (Linux).
func measureCost(b *bench) error {
	sides := []*costSide{{name: "by hand", setUp: setUpByHand}}
	for _, l := range []layout{perQueue, grouped, limited} {
		sides = append(sides, &costSide{name: "library, " + l.name, setUp: setUpLibrary(l)})
	}
	for _, side := range sides {
		uri, remove, err := b.vhost("cost")
		if err != nil {
			return err
		}
		defer remove()
		stop, err := side.start(b, uri)
		if err != nil {
			return fmt.Errorf("%s: %w", side.name, err)
		}
		defer stop()
	}
	if b.process == 0 {
		fmt.Println("the broker's process is not on this machine: its processor time is not known")
		return nil
	}
	spent, err := alternate(b.turns(20), len(sides), func(i int) (float64, error) { return sides[i].measure(b) })
	if err != nil {
		return err
	}
	for i, side := range sides {
		all := ratios(spent[i], spent[0])
		b.row("Processor time of the broker for one retry", []string{"side", "headers", "µs", "ratio to by hand"},
			side.name, len(side.copied.Headers), digits(median(spent[i])), spread(all, "%.2f"))
		if side.name == "library, "+perQueue.name {
			b.claim("cost_retry", median(all))
		}
	}
	return nil
}

func (side *costSide) start(b *bench, uri string) (stop func(), err error) {
	if side.exchange, side.key, side.copied, err = side.setUp(b, uri); err != nil {
		return nil, err
	}
	if side.pipeline, err = newPipeline(uri); err != nil {
		return nil, err
	}
	stopConsumer, err := consumeByHand(uri, work, 1, inFlight, func(d amqp091.Delivery) {
		side.ledger.Load().call(identity(d))
		_ = d.Ack(false)
	})
	return func() { stopConsumer(); side.pipeline.close() }, err
}

// measure publishes a batch and waits until all of it has come back. It returns the broker's processor time for a
// message, in µs.
func (side *costSide) measure(b *bench) (float64, error) {
	batch := b.size(2_000, 500)
	l := newLedger(batch, always(costTier))
	side.ledger.Store(l)
	before := processorTime(b.process)
	for i := range batch {
		l.waits(i)
		if err := side.pipeline.publish(side.exchange, side.key, again(side.copied, i)); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(side.pipeline.flush(), l.wait(0)); err != nil {
		return 0, err
	}
	return float64((processorTime(b.process) - before).Microseconds()) / float64(batch), nil
}

// setUpByHand needs no exchange of its own, and counts attempts in a header.
func setUpByHand(_ *bench, uri string) (exchange, key string, copied amqp091.Publishing, err error) {
	const tier = work + ".waiting"
	err = with(uri, func(channel *amqp091.Channel) error {
		return errors.Join(declareQuorum(channel, work, nil),
			declareQuorum(channel, tier, safeTierByHand(costTier, work)))
	})
	return "", tier, byHand(idOf(0), 1), err
}

func setUpLibrary(l layout) func(b *bench, uri string) (string, string, amqp091.Publishing, error) {
	return func(b *bench, uri string) (exchange, key string, copied amqp091.Publishing, err error) {
		c := l.config(uri, backoff.Constant(costTier, 3))
		t, err := topologyOf(c, work)
		if err == nil {
			err = declare(uri, c, work)
		}
		if err == nil {
			exchange, key = route(t, costTier)
			copied, err = b.copyOf(l, work)
		}
		return exchange, key, copied, err
	}
}
