package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	millionQueue = "orders"
	millionTiers = 4
)

type millionResult struct {
	broker, side string
	messages     int
	publish      float64 // messages a second
	drain        float64
	progress     []point // seconds since the first delivery, messages
}

type point struct{ x, y float64 }

// A millionSide publishes the messages to tiers and consumes them again.
type millionSide interface {
	name() string
	// prepare declares the queues. Messages of the last tier are published first.
	prepare(uri string, tiers backoff.Schedule) error
	publish(l *ledger, tierOf func(message int) time.Duration) error
	consume(uri string, l *ledger) (stop func(), err error)
	close()
}

// A millionPlan has tiers such that all messages wait at the same time, and are due at about the same time: the tiers differ by the
// time that publishing takes for the messages of one.
type millionPlan struct {
	messages int
	tiers    backoff.Schedule // ascending
}

func (p millionPlan) tierOf(message int) time.Duration {
	return p.tiers[millionTiers-1-message*millionTiers/p.messages]
}

// newMillionPlan is for a publisher of this rate. All messages wait together for settle.
func newMillionPlan(messages int, rate float64, settle time.Duration) millionPlan {
	each := time.Duration(float64(messages)/millionTiers/rate*float64(time.Second)).Round(100*time.Millisecond) + 500*time.Millisecond
	p := millionPlan{messages: messages}
	for i := range millionTiers {
		p.tiers = append(p.tiers, settle+time.Duration(i+1)*each)
	}
	return p
}

func measureMillion(s *server, o settings, r *report) error {
	var library, mixed, hand millionResult
	// The library comes first: what the measurement by hand has left in memory must not count.
	for _, of := range []struct {
		side   millionSide
		result *millionResult
	}{{&millionLibrary{layout: perQueue}, &library}, {&millionLibrary{layout: perQueue, byHand: true}, &mixed}, {&millionByHand{}, &hand}} {
		result, err := measureMillionSide(s, o, r, of.side)
		if err != nil {
			return fmt.Errorf("%s: %w", of.side.name(), err)
		}
		*of.result = result
		r.million = append(r.million, result)
	}
	r.claimAtLeast(s, "million_drain", "", library.drain/mixed.drain, 0.9)
	r.claimAtLeast(s, "million_drain_all_by_hand", "", library.drain/hand.drain, 0.9)
	return nil
}

func measureMillionSide(s *server, o settings, r *report, side millionSide) (result millionResult, err error) {
	rate, err := warmUp(s, o, side)
	if err != nil {
		return result, fmt.Errorf("warm up: %w", err)
	}
	settle := 15 * time.Second
	if o.short {
		settle = 2 * time.Second
	}
	plan := newMillionPlan(o.messages, rate*0.8, settle)
	uri, remove, err := s.vhost("million")
	if err != nil {
		return result, err
	}
	defer remove()
	if err := side.prepare(uri, plan.tiers); err != nil {
		return result, err
	}
	defer side.close()
	l := newLedger(o.messages)
	stop, err := side.consume(uri, l)
	if err != nil {
		return result, err
	}
	defer stop()
	debug.FreeOSMemory()
	ownIdle, idle := residentMemory(), s.memoryNow(o.short)
	ownPeak := peak(50*time.Millisecond, residentMemory)
	brokerPeak := peak(time.Second, s.memory)

	began := time.Now()
	if err := side.publish(l, plan.tierOf); err != nil {
		return result, err
	}
	published := time.Since(began)
	publishing, waiting := brokerPeak(), int64(o.messages)-int64(l.back())
	settled := s.memoryNow(o.short)
	brokerPeak = peak(time.Second, s.memory)
	ownTime, brokerTime := processorTime(os.Getpid()), processorTime(s.process)
	drain, err := drained(l, plan.tiers[millionTiers-1])
	each := func(spent time.Duration) string {
		if spent == 0 {
			return "not known"
		}
		return number(float64(spent.Microseconds())/float64(o.messages)) + " µs"
	}
	ownEach, brokerEach := each(processorTime(os.Getpid())-ownTime), each(processorTime(s.process)-brokerTime)
	draining, app := brokerPeak(), ownPeak()
	if err != nil {
		return result, err
	}
	result = millionResult{
		broker: s.version, side: side.name(), messages: o.messages, publish: float64(o.messages) / published.Seconds(), drain: drain.rate,
		progress: drain.progress,
	}
	r.row("million", "Many messages that wait at the same time", []string{"RabbitMQ", "side", "messages", "waiting together", "published a second",
		"drained a second", "broker idle", "while publishing", "waiting", "while draining", "this process above idle",
		"its processor time for a message that comes back", "the broker's", "lost, early, twice"},
		s.version, side.name(), number(float64(o.messages)), number(float64(waiting)), number(result.publish), number(result.drain), mebibytes(idle),
		mebibytes(publishing), mebibytes(settled), mebibytes(draining), mebibytes(app-ownIdle), ownEach, brokerEach,
		fmt.Sprintf("%d, %d, %d", l.left.Load(), l.early.Load(), l.twice.Load()))
	if ours, ok := side.(*millionLibrary); ok && !ours.byHand {
		millionClaims(s, r, app-ownIdle, l)
	}
	return result, nil
}

// millionClaims are those of the library's own subscriber alone.
func millionClaims(s *server, r *report, app int64, l *ledger) {
	r.claimAtMost(s, "million_app_memory", "MiB", float64(app)/(1<<20), 64)
	r.claimAtMost(s, "million_lost", "", float64(l.left.Load()), 0)
	r.claimAtMost(s, "million_early", "", float64(l.early.Load()), 0)
	r.claimAtMost(s, "million_twice", "", float64(l.twice.Load()), 0)
}

// warmUp returns how many messages a second a side publishes.
func warmUp(s *server, o settings, side millionSide) (float64, error) {
	uri, remove, err := s.vhost("million")
	if err != nil {
		return 0, err
	}
	defer remove()
	plan := millionPlan{messages: max(o.messages/20, 1_000), tiers: backoff.Schedule{time.Hour, 2 * time.Hour, 3 * time.Hour, 4 * time.Hour}}
	if err := side.prepare(uri, plan.tiers); err != nil {
		return 0, err
	}
	defer side.close()
	began := time.Now()
	err = side.publish(newLedger(plan.messages), plan.tierOf)
	return float64(plan.messages) / time.Since(began).Seconds(), err
}

type drainResult struct {
	rate     float64
	progress []point
}

// drained waits until all messages have come back, and measures from the first to the last.
func drained(l *ledger, longest time.Duration) (d drainResult, err error) {
	finished := make(chan error, 1)
	go func() { finished <- l.wait(longest) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var first time.Time
	already := 0
	for {
		select {
		case <-tick.C:
			back := l.back()
			if back == 0 {
				continue
			}
			if first.IsZero() {
				first, already = time.Now(), back
			}
			d.progress = append(d.progress, point{time.Since(first).Seconds(), float64(back)})
		case err := <-finished:
			if err != nil {
				return d, err
			}
			last := l.begin.Add(time.Duration(l.last.Load()))
			if took := last.Sub(first); !first.IsZero() && took > 0 {
				d.rate = float64(len(l.due)-already) / took.Seconds()
			}
			d.progress = append(d.progress, point{max(0, last.Sub(first).Seconds()), float64(len(l.due))})
			return d, nil
		}
	}
}

// millionLibrary is the library's publisher of failures, and its own subscriber or a consumer by hand.
type millionLibrary struct {
	byHand bool
	layout layout
	tiers  backoff.Schedule
	copier *copier
}

func (m *millionLibrary) name() string {
	if m.byHand {
		return "library's copies, consumer by hand"
	}
	return "library, " + m.layout.name
}

func (m *millionLibrary) prepare(uri string, tiers backoff.Schedule) (err error) {
	m.tiers = tiers
	c := m.layout.config(uri, tiers)
	if err := declareTopics(c, uri, millionQueue); err != nil {
		return err
	}
	m.copier, err = newCopier(c)
	return err
}

func (m *millionLibrary) publish(l *ledger, tierOf func(int) time.Duration) error {
	return publishAll(len(l.due), func(i int) error {
		delay, now := tierOf(i), time.Now()
		l.waits(i, delay)
		return m.copier.publish(idOf(i), millionQueue, backoff.Tier(delay), failedOnce(millionQueue, now, delay))
	})
}

// failedOnce is the record of a message that has failed once.
func failedOnce(topic string, at time.Time, delay time.Duration) retry.Record {
	return retry.Record{
		Failures: 1, FirstFailedAt: at, LastFailedAt: at, DueAt: at.Add(delay), Reason: "the payment service does not answer",
		ErrorType: "*errors.errorString", Topic: topic, Handler: "billing",
	}
}

func (m *millionLibrary) consume(uri string, l *ledger) (func(), error) {
	if m.byHand {
		return (&millionByHand{}).consume(uri, l)
	}
	return consume(m.layout.config(uri, m.tiers), millionQueue, func(msg *message.Message) error {
		l.comesBack(msg.UUID)
		return nil
	}, middleware.HandlerOptions{Concurrency: prefetch})
}

func (m *millionLibrary) close() { m.copier.close() }

// millionByHand has the same tiers behind the default exchange, and a counter of attempts instead of the record.
type millionByHand struct{ pipeline *pipeline }

func (m *millionByHand) name() string { return "by hand" }

func (m *millionByHand) prepare(uri string, tiers backoff.Schedule) error {
	err := with(uri, func(channel *amqp091.Channel) error {
		faults := []error{declareQuorum(channel, millionQueue, nil)}
		for _, tier := range tiers {
			faults = append(faults, declareQuorum(channel, millionQueue+"."+tier.String(), tierByHand(tier, millionQueue)))
		}
		return errors.Join(faults...)
	})
	if err != nil {
		return err
	}
	m.pipeline, err = newPipeline(uri)
	return err
}

func (m *millionByHand) publish(l *ledger, tierOf func(int) time.Duration) error {
	for i := range l.due {
		delay := tierOf(i)
		l.waits(i, delay)
		if err := m.pipeline.publish("", millionQueue+"."+delay.String(), byHand(idOf(i), 1)); err != nil {
			return err
		}
	}
	return m.pipeline.flush()
}

func (m *millionByHand) consume(uri string, l *ledger) (func(), error) {
	return consumeByHand(uri, millionQueue, 1, func(d amqp091.Delivery) {
		l.comesBack(identity(d))
		_ = d.Ack(false)
	})
}

func (m *millionByHand) close() { m.pipeline.close() }
