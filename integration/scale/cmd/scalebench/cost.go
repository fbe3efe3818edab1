package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

const (
	costQueue = "orders"
	costTier  = 100 * time.Millisecond
)

type costResult struct {
	broker, side string
	ratios       []float64 // to the side by hand, ascending
}

// A costSide is a topology with its copies. Publisher and consumer are the same on all sides, so that only the broker's work differs.
type costSide struct {
	name  string
	claim string
	// setUp declares the topology and returns where copies are published to, and one of them.
	setUp func(uri string) (exchange, key string, copy amqp091.Publishing, err error)
}

func costSides() []costSide {
	sides := []costSide{{name: "by hand", setUp: setUpByHand}}
	for _, l := range costLayouts() {
		sides = append(sides, costSide{name: "library, " + l.name, claim: l.claim, setUp: setUpLibrary(l.layout)})
	}
	return append(sides, costSide{name: "topic exchanges, many headers", setUp: setUpTopic})
}

// A costLayout has a claim if its cost has a bound.
type costLayout struct {
	layout
	claim string
}

func costLayouts() []costLayout {
	limited := layout{name: "grouped, with inbox", configure: func(c *config.BuilderConfig) {
		grouped.configure(c)
		c.AMQP.Queue.Arguments = amqp091.Table{"x-max-length": 1_000_000, "x-overflow": "reject-publish"}
	}}
	return []costLayout{{perQueue, "cost_retry"}, {grouped, ""}, {limited, ""}}
}

// A costRow is a side that is set up.
type costRow struct {
	side     costSide
	exchange string
	key      string
	copy     amqp091.Publishing
	pipeline *pipeline
	ledger   atomic.Pointer[ledger]
	cpu      []float64 // µs for each retry, by round
	stops    []func()
}

// measureCost sets up all sides first. Then each gets its batch in turn, so that a change of the machine's load affects all alike.
func measureCost(s *server, o settings, r *report) error {
	batch := 2_000
	if o.short {
		batch = 500
	}
	var rows []*costRow
	defer func() {
		for _, row := range rows {
			for _, stop := range slices.Backward(row.stops) {
				stop()
			}
		}
	}()
	for _, side := range costSides() {
		row := &costRow{side: side}
		rows = append(rows, row)
		if err := row.setUp(s); err != nil {
			return fmt.Errorf("%s: %w", side.name, err)
		}
	}
	for round := range o.rounds + 1 {
		for i := range rows {
			row := rows[(i+round)%len(rows)] // another side is first in each round
			if err := row.measure(s, batch); err != nil {
				return fmt.Errorf("%s: %w", row.side.name, err)
			}
		}
	}
	if s.process == 0 {
		fmt.Println("the broker's process is not on this machine: its processor time is not known")
		return nil
	}
	for _, row := range rows {
		row.cpu = row.cpu[1:] // of the first round, in which queues and connections are new
	}
	for _, row := range rows {
		ratios := make([]float64, len(row.cpu))
		for i := range ratios {
			ratios[i] = row.cpu[i] / rows[0].cpu[i]
		}
		middle := median(ratios)
		slices.Sort(ratios)
		r.cost = append(r.cost, costResult{s.version, row.side.name, ratios})
		r.row("cost", "Processor time of the broker for one retry",
			[]string{"RabbitMQ", "side", "headers", "median", "ratio to by hand", "half of the rounds"},
			s.version, row.side.name, fmt.Sprint(len(row.copy.Headers)), number(median(row.cpu))+" µs", fmt.Sprintf("%.2f", middle),
			fmt.Sprintf("%.2f to %.2f", percentile(ratios, 0.25), percentile(ratios, 0.75)))
		if row.side.claim != "" {
			r.claimAtMost(s, row.side.claim, "", middle, 1.15)
		}
	}
	return nil
}

func (row *costRow) setUp(s *server) error {
	uri, remove, err := s.vhost("cost")
	if err != nil {
		return err
	}
	row.stops = append(row.stops, remove)
	if row.exchange, row.key, row.copy, err = row.side.setUp(uri); err != nil {
		return err
	}
	if row.pipeline, err = newPipeline(uri); err != nil {
		return err
	}
	row.stops = append(row.stops, row.pipeline.close)
	stop, err := consumeByHand(uri, costQueue, 1, func(d amqp091.Delivery) {
		row.ledger.Load().comesBack(identity(d))
		_ = d.Ack(false)
	})
	if err == nil {
		row.stops = append(row.stops, stop)
	}
	return err
}

// measure publishes a batch and waits until all of it has come back.
func (row *costRow) measure(s *server, batch int) error {
	l := newLedger(batch)
	row.ledger.Store(l)
	before := processorTime(s.process)
	for i := range batch {
		copied := row.copy
		copied.Headers = maps.Clone(row.copy.Headers)
		copied.Headers[publisher.UUIDHeader] = idOf(i)
		l.waits(i, costTier)
		if err := row.pipeline.publish(row.exchange, row.key, copied); err != nil {
			return err
		}
	}
	if err := row.pipeline.flush(); err != nil {
		return err
	}
	if err := l.wait(costTier); err != nil {
		return err
	}
	spent := processorTime(s.process) - before
	row.cpu = append(row.cpu, float64(spent.Microseconds())/float64(batch))
	return nil
}

// setUpByHand needs no exchange of its own, and counts attempts in a header.
func setUpByHand(uri string) (exchange, key string, copied amqp091.Publishing, err error) {
	const tier = costQueue + ".waiting"
	err = with(uri, func(channel *amqp091.Channel) error {
		return errors.Join(declareQuorum(channel, costQueue, nil), declareQuorum(channel, tier, tierByHand(costTier, costQueue)))
	})
	return "", tier, byHand(idOf(0), 1), err
}

// setUpLibrary takes the copy from the broker, so that it is what the library publishes.
func setUpLibrary(l layout) func(uri string) (string, string, amqp091.Publishing, error) {
	return func(uri string) (exchange, key string, copied amqp091.Publishing, err error) {
		schedule := backoff.Constant(costTier, 3)
		c := l.config(uri, schedule)
		builder, err := config.NewBuilder(c)
		if err != nil {
			return "", "", copied, err
		}
		if err := declareTopics(c, uri, costQueue); err != nil {
			return "", "", copied, err
		}
		failures, err := newCopier(c)
		if err != nil {
			return "", "", copied, err
		}
		defer failures.close()
		err = with(uri, func(channel *amqp091.Channel) error {
			d, err := captured(channel, builder.Topology(costQueue), func() error {
				return failures.publish(idOf(0), costQueue, backoff.Tier(costTier), failedOnce(costQueue, time.Now(), costTier))
			})
			exchange, key = d.Exchange, d.RoutingKey
			copied = amqp091.Publishing{Headers: d.Headers, DeliveryMode: d.DeliveryMode, ContentType: d.ContentType, Body: d.Body}
			return err
		})
		return exchange, key, copied, err
	}
}

// captured returns the message that publish sends to the tiers, and takes it from the work queue when it has come back.
func captured(channel *amqp091.Channel, t topology.Topology, publish func() error) (d amqp091.Delivery, err error) {
	queue, err := channel.QueueDeclare("", false, false, true, false, nil)
	if err != nil {
		return d, err
	}
	for _, tier := range t.Queues {
		if _, waits := tier.Arguments["x-message-ttl"]; !waits {
			continue
		}
		for _, b := range t.Bindings {
			if b.Queue == tier.Name {
				if err := channel.QueueBind(queue.Name, b.Key, b.Exchange, false, nil); err != nil {
					return d, err
				}
			}
		}
	}
	if err := publish(); err != nil {
		return d, err
	}
	d, found, err := channel.Get(queue.Name, true)
	if err == nil && !found {
		err = errors.New("the copy was not captured")
	}
	for deadline := time.Now().Add(patience); err == nil; time.Sleep(10 * time.Millisecond) {
		if _, found, err = channel.Get(t.WorkQueue.Name, true); found {
			break
		}
		if time.Now().After(deadline) {
			err = errors.New("the copy did not come back")
		}
	}
	if err == nil {
		_, err = channel.QueueDelete(queue.Name, false, false, false)
	}
	return d, err
}

// setUpTopic is what costs more: patterns on both ways, and each key of the record in a header of its own.
func setUpTopic(uri string) (exchange, key string, copied amqp091.Publishing, err error) {
	const retry, back, orphans = "retry", "retry.return", "retry.orphans"
	err = with(uri, func(channel *amqp091.Channel) error {
		tier := tierByHand(costTier, "")
		delete(tier, "x-dead-letter-routing-key")
		tier["x-dead-letter-exchange"] = back
		protected := amqp091.Table{"x-dead-letter-exchange": retry, "x-dead-letter-routing-key": "dead." + costQueue, "x-delivery-limit": topology.DeliveryLimit}
		return errors.Join(
			channel.ExchangeDeclare(orphans, amqp091.ExchangeFanout, true, false, false, false, nil),
			channel.ExchangeDeclare(retry, amqp091.ExchangeTopic, true, false, false, false, nil),
			channel.ExchangeDeclare(back, amqp091.ExchangeTopic, true, false, false, false, amqp091.Table{"alternate-exchange": orphans}),
			declareQuorum(channel, orphans, nil), declareQuorum(channel, costQueue, protected), declareQuorum(channel, costQueue+".retry", tier),
			channel.QueueBind(orphans, "", orphans, false, nil),
			channel.QueueBind(costQueue+".retry", "100ms."+costQueue, retry, false, nil),
			channel.QueueBind(costQueue, "*."+costQueue, back, false, nil),
		)
	})
	record := message.Metadata{}
	failedOnce(costQueue, time.Now(), costTier).Write(record)
	copied = byHand(idOf(0), 0)
	copied.Headers[publisher.IDHeader] = idOf(0)
	for name, value := range record {
		copied.Headers[name] = value
	}
	return retry, "100ms." + costQueue, copied, err
}
