package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
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
	name          string
	copies, reads bool // the library's copies, and its own subscriber; else both by hand
}

// measureMillion compares the library with the same copies and a consumer by hand, and with code by hand alone. The
// library comes first: what the measurement by hand has left in memory must not count.
func measureMillion(b *bench) error {
	copied, err := b.copyOf(perQueue, work)
	if err != nil {
		return err
	}
	var drained []float64
	for _, side := range []millionSide{
		{"library", true, true}, {"library's copies, consumer by hand", true, false}, {"by hand", false, false},
	} {
		const hours = time.Hour
		plan := millionPlan{max(b.messages/20, 1_000), backoff.Schedule{hours, 2 * hours, 3 * hours, 4 * hours}}
		var rate float64
		err := b.in("million", func(uri string) error { // warm up
			began := time.Now()
			err := side.publish(uri, plan, copied, newLedger(plan.messages, plan.tierOf))
			rate = float64(plan.messages) / time.Since(began).Seconds()
			return err
		})
		if err == nil {
			plan = newMillionPlan(b.messages, rate*0.8, time.Duration(b.size(15, 2))*time.Second)
			err = b.in("million", func(uri string) error {
				rate, err = side.measure(b, uri, plan, copied)
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

// publish declares the queues, and publishes the messages.
func (side millionSide) publish(uri string, plan millionPlan, copied amqp091.Publishing, l *ledger) error {
	c := perQueue.config(uri, plan.tiers)
	t, err := topologyOf(c, work)
	if err != nil {
		return err
	}
	if side.copies {
		err = declare(uri, c, work)
	} else {
		err = with(uri, func(channel *amqp091.Channel) error {
			faults := []error{declareQuorum(channel, work, nil)}
			for _, tier := range plan.tiers {
				faults = append(faults, declareQuorum(channel, work+"."+tier.String(), safeTierByHand(tier, work)))
			}
			return errors.Join(faults...)
		})
	}
	if err != nil {
		return err
	}
	return publishAll(uri, plan.messages, 0, func(i int) (exchange, key string, p amqp091.Publishing) {
		tier := plan.tierOf(i)
		l.waits(i)
		if !side.copies {
			return "", work + "." + tier.String(), byHand(idOf(i), 1)
		}
		exchange, key = route(t, tier)
		return exchange, key, again(copied, i)
	})
}

// consume consumes the messages that have come back.
func (side millionSide) consume(uri string, plan millionPlan, l *ledger) (stop func(), err error) {
	if side.reads {
		_, stop, err = handling{handlers: 1, concurrency: inFlight}.consume(perQueue.config(uri, plan.tiers), l.retry,
			work)
		return stop, err
	}
	return consumeByHand(uri, work, 1, inFlight, func(d amqp091.Delivery) {
		l.call(identity(d))
		_ = d.Ack(false)
	})
}

// measure returns how many messages a second come back.
func (side millionSide) measure(b *bench, uri string, plan millionPlan, copied amqp091.Publishing) (rate float64,
	err error) {
	l := newLedger(plan.messages, plan.tierOf)
	debug.FreeOSMemory()
	own := func() int64 { return residentMemory(os.Getpid()) }
	ownIdle, idle, began := own(), b.memoryNow(), time.Now()
	if err := side.publish(uri, plan, copied, l); err != nil {
		return 0, err
	}
	published := time.Since(began)
	waiting := b.memoryNow()
	debug.FreeOSMemory()
	ownIdle = min(ownIdle, own())
	ownPeak, brokerPeak := peak(50*time.Millisecond, own), peak(time.Second, b.memory)
	ownTime, brokerTime := processorTime(os.Getpid()), processorTime(b.process)
	stop, err := side.consume(uri, plan, l)
	if err != nil {
		return 0, err
	}
	defer stop()
	err = l.wait(plan.tiers[millionTiers-1])
	each := func(spent time.Duration) string {
		return digits(float64(spent.Microseconds()) / float64(plan.messages))
	}
	ownTime, brokerTime = processorTime(os.Getpid())-ownTime, processorTime(b.process)-brokerTime
	app := mebibytes(ownPeak() - ownIdle)
	rate = float64(plan.messages-1) / (l.last - l.first).Seconds()
	b.row("Many messages that wait at the same time", []string{
		"side", "messages", "published a second", "drained a second", "broker idle, MiB", "waiting", "draining",
		"this process above idle, MiB", "its µs for a message", "the broker's µs",
	}, side.name, plan.messages, digits(float64(plan.messages)/published.Seconds()), digits(rate),
		digits(mebibytes(idle)),
		digits(mebibytes(waiting)), digits(mebibytes(brokerPeak())), digits(app), each(ownTime), each(brokerTime))
	if side.reads {
		b.claim("million_app_memory", app)
		b.claim("million_lost", float64(l.left))
		b.claim("million_early", float64(l.early))
		b.claim("million_twice", float64(l.twice))
	}
	return rate, err
}
