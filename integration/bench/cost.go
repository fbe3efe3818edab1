package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/tools/claims"
)

const costTier = 100 * time.Millisecond

type declarer func(uri string, tiers ...time.Duration) (copies, error)

// A costSide is a topology with its copies. Publisher and consumer are the same on all sides, so that only the
// broker's work differs.
type costSide struct {
	copies
	pipeline *pipeline
	ledger   atomic.Pointer[ledger]
}

// measureCost sets up all sides first. Then each gets its batch in turn. It needs a broker on the same machine (Linux).
func measureCost(b *bench) error {
	names, topologies := []string{"by hand", "tiers of each work queue"}, []declarer{b.copiesByHand, b.copies}
	sides := make([]*costSide, len(names))
	for i, declare := range topologies {
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
		b.note("the broker's process is not on this machine: its processor time is not known")
		return nil
	}
	spent, err := claims.Alternate(b.Turns(20), len(sides), func(i int) (float64, error) { return sides[i].measure(b) })
	if err != nil {
		return err
	}
	for i, name := range names {
		b.note("%s: %s µs of the broker for one retry", name, claims.Digits(claims.Median(spent[i])))
	}
	b.ratio("cost_retry", spent[1], spent[0])
	return nil
}

func (side *costSide) start(uri string, declare declarer) (stop func(), err error) {
	if side.copies, err = declare(uri, costTier); err != nil {
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
	batch := b.Size(2_000, 500)
	l := newLedger(batch, always(costTier))
	side.ledger.Store(l)
	spent := b.spentBy()
	for i := range batch {
		l.fails(idOf(i))
		if err := side.pipeline.publish(side.copies(i, costTier)); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(side.pipeline.flush(), l.wait(0)); err != nil {
		return 0, err
	}
	_, ofBroker := spent(batch)
	return ofBroker, nil
}
