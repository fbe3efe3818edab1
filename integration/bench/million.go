package main

import (
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

// measureMillion measures the memory of an app to whose queue a million messages come back.
func measureMillion(b *bench) error {
	plan := millionPlan{max(b.Messages/20, 1_000),
		backoff.Schedule{time.Hour, 2 * time.Hour, 3 * time.Hour, 4 * time.Hour}}
	var rate float64
	err := b.in("million", func(uri string) error { // warm up
		copies, err := b.copies(uri, plan.tiers...)
		if err != nil {
			return err
		}
		began := time.Now()
		err = plan.publish(uri, copies, newLedger(plan.messages, plan.tierOf))
		rate = float64(plan.messages) / time.Since(began).Seconds()
		return err
	})
	if err != nil {
		return err
	}
	plan = newMillionPlan(b.Messages, rate*0.8, time.Duration(b.Size(15, 2))*time.Second)
	return b.in("million", func(uri string) error { return plan.measure(b, uri) })
}

// publish publishes the messages to their tiers.
func (p millionPlan) publish(uri string, copies copies, l *ledger) error {
	return publishAll(uri, p.messages, 0, func(i int) (exchange, key string, _ amqp091.Publishing) {
		l.fails(idOf(i))
		return copies(i, p.tierOf(i))
	})
}

// measure publishes the copies, and consumes them when they come back.
func (p millionPlan) measure(b *bench, uri string) error {
	copies, err := b.copies(uri, p.tiers...)
	if err != nil {
		return err
	}
	l := newLedger(p.messages, p.tierOf)
	debug.FreeOSMemory()
	own := func() int64 { _, memory := used(os.Getpid()); return memory }
	idle, began := own(), time.Now()
	if err := p.publish(uri, copies, l); err != nil {
		return err
	}
	published := time.Since(began)
	debug.FreeOSMemory()
	idle = min(idle, own())
	largest := peak(50*time.Millisecond, own)
	spent := b.spentBy()
	_, stop, err := many.consume(configOf(uri, p.tiers), l.retry, work)
	if err != nil {
		return err
	}
	defer stop()
	err = l.wait(p.tiers[millionTiers-1])
	ownTime, brokerTime := spent(p.messages)
	app := mebibytes(largest() - idle)
	b.note("%d messages, published a second %s, drained %s; this process: %s MiB above idle, %s µs for each, and %s of "+
		"the broker", p.messages, claims.Digits(float64(p.messages)/published.Seconds()),
		claims.Digits(float64(p.messages-1)/(l.last-l.first).Seconds()), claims.Digits(app), claims.Digits(ownTime),
		claims.Digits(brokerTime))
	b.claim("million_app_memory", app)
	return err
}
