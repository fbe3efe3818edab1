package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// A millionPlan has tiers such that all messages wait at the same time, and are due at about the same time: the tiers
// differ by the time that publishing takes for the messages of one.
type millionPlan struct {
	messages int
	tiers    backoff.Schedule // ascending
}

const millionTiers = 4

// newMillionPlan is for a publisher of this rate. All messages wait together for settle.
func newMillionPlan(messages int, rate float64, settle time.Duration) millionPlan {
	each := time.Duration(float64(messages) / millionTiers / rate * float64(time.Second)).Round(100 * time.Millisecond)
	p := millionPlan{messages: messages}
	for i := range millionTiers {
		p.tiers = append(p.tiers, settle+time.Duration(i+1)*(each+500*time.Millisecond))
	}
	return p
}

// tierOf returns the longest tier for the messages that are published first.
func (p millionPlan) tierOf(message int) time.Duration {
	return p.tiers[millionTiers-1-message*millionTiers/p.messages]
}

// A millionSide publishes the messages to tiers and consumes them again.
type millionSide struct {
	name   string
	layout layout // of the copies
	reads  bool   // with the library's own subscriber, else by hand
}

// measureMillion compares the library with the same copies and a consumer by hand, and with code by hand alone. The
// library comes first: what the measurement by hand has left in memory must not count.
func measureMillion(b *bench) error {
	var drained []float64
	for _, side := range []millionSide{
		{"library", perQueue, true}, {"library's copies, consumer by hand", perQueue, false},
		{"by hand", byHandOnly, false},
	} {
		const hours = time.Hour
		plan := millionPlan{max(b.Messages/20, 1_000), backoff.Schedule{hours, 2 * hours, 3 * hours, 4 * hours}}
		var rate float64
		err := b.in("million", func(uri string) error { // warm up
			copies, err := b.copies(uri, side.layout, plan.tiers...)
			if err != nil {
				return err
			}
			began := time.Now()
			err = plan.publish(uri, copies, newLedger(plan.messages, plan.tierOf))
			rate = float64(plan.messages) / time.Since(began).Seconds()
			return err
		})
		if err == nil {
			plan = newMillionPlan(b.Messages, rate*0.8, time.Duration(b.Size(15, 2))*time.Second)
			err = b.in("million", func(uri string) error {
				rate, err = side.measure(b, uri, plan)
				return err
			})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", side.name, err)
		}
		drained = append(drained, rate)
	}
	b.claim("million_drain", drained[0]/drained[1])
	b.claim("million_drain_all_by_hand", drained[0]/drained[2])
	return nil
}

// publish publishes the messages to their tiers.
func (p millionPlan) publish(uri string, copies copies, l *ledger) error {
	return publishAll(uri, p.messages, 0, func(i int) (exchange, key string, _ amqp091.Publishing) {
		l.fails(idOf(i))
		return copies(i, p.tierOf(i))
	})
}

// consume consumes the messages that have come back.
func (side millionSide) consume(uri string, plan millionPlan, l *ledger) (stop func(), err error) {
	if side.reads {
		_, stop, err = many.consume(perQueue.config(uri, plan.tiers), l.retry, work)
		return stop, err
	}
	return consumeByHand(uri, work, 1, inFlight, func(d amqp091.Delivery) {
		l.call(identity(d))
		_ = d.Ack(false)
	})
}

// measure returns how many messages a second come back.
func (side millionSide) measure(b *bench, uri string, plan millionPlan) (rate float64, err error) {
	copies, err := b.copies(uri, side.layout, plan.tiers...)
	if err != nil {
		return 0, err
	}
	l := newLedger(plan.messages, plan.tierOf)
	debug.FreeOSMemory()
	own := func() int64 { _, memory := used(os.Getpid()); return memory }
	ownIdle, began := own(), time.Now()
	if err := plan.publish(uri, copies, l); err != nil {
		return 0, err
	}
	published := time.Since(began)
	debug.FreeOSMemory()
	ownIdle = min(ownIdle, own())
	ownPeak := peak(50*time.Millisecond, own)
	spent := b.spentBy()
	stop, err := side.consume(uri, plan, l)
	if err != nil {
		return 0, err
	}
	defer stop()
	err = l.wait(plan.tiers[millionTiers-1])
	ownTime, brokerTime := spent(plan.messages)
	app := mebibytes(ownPeak() - ownIdle)
	rate = float64(plan.messages-1) / (l.last - l.first).Seconds()
	b.note("%s: %d messages, published a second %s, drained %s; this process: %s MiB above idle, %s µs for each, and %s "+
		"of the broker", side.name, plan.messages, claims.Digits(float64(plan.messages)/published.Seconds()),
		claims.Digits(rate), claims.Digits(app), claims.Digits(ownTime), claims.Digits(brokerTime))
	if side.reads {
		b.claim("million_app_memory", app)
		b.claim("million_twice", float64(l.Twice))
	}
	return rate, err
}
