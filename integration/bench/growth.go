package main

import (
	"fmt"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// growthTiers are six, of which no message comes back while the run lasts.
var growthTiers = backoff.Schedule{time.Hour, 2 * time.Hour, 3 * time.Hour, 4 * time.Hour, 5 * time.Hour, 6 * time.Hour}

// A growthRow is one layout with a number of work queues, in a virtual host of its own.
type growthRow struct {
	layout layout
	works  int

	uri        string
	topologies []topology.Topology
	copied     amqp091.Publishing
	queues     map[string]bool
	base       time.Duration // to declare work queues and dead letters
	tiers      time.Duration // to declare tiers and bindings
	memory     int64         // that the tiers and bindings need
	waiting    int
}

// measureGrowth sets up all rows first, and then publishes to them in turns. 1,000 work queues with tiers of each are
// left out: 6,000 queues take many minutes.
func measureGrowth(b *bench) error {
	few, many := b.size(10, 3), b.size(1_000, 10)
	rows := []*growthRow{
		{layout: perQueue, works: few}, {layout: perQueue, works: b.size(100, 10)},
		{layout: grouped, works: few}, {layout: grouped, works: b.size(100, 10)}, {layout: grouped, works: many},
	}
	for _, row := range rows {
		uri, remove, err := b.vhost("growth")
		if err != nil {
			return err
		}
		defer remove()
		row.uri = uri
		if err := row.setUp(b); err != nil {
			return fmt.Errorf("%d work queues, %s: %w", row.works, row.layout.name, err)
		}
	}
	rates, err := claims.Alternate(b.turns(5), len(rows), func(i int) (float64, error) {
		messages := b.size(5_000, 200)
		began := time.Now()
		err := rows[i].publish(messages)
		return float64(messages) / time.Since(began).Seconds(), err
	})
	if err != nil {
		return err
	}
	for i, row := range rows {
		if err := row.count(); err != nil {
			return fmt.Errorf("%d work queues, %s: %w", row.works, row.layout.name, err)
		}
		b.note("%s, %d work queues: %d queues; tiers and bindings declared in %v, after %v for the others; %s MiB of "+
			"the broker; published a second %s", row.layout.name, row.works, len(row.queues), row.tiers, row.base,
			claims.Digits(mebibytes(row.memory)), claims.Spread(rates[i], "%.0f"))
	}
	b.claim("declare_grouped_1000", rows[4].tiers.Seconds())
	b.claim("publish_grouped_1000_to_10", claims.Median(claims.Ratios(rates[4], rates[2])))
	return nil
}

// setUp declares first what a work queue needs without tiers, and then everything: only tiers and bindings are new
// then. Each queue, exchange and binding is declared once, as by Connect.
func (row *growthRow) setUp(b *bench) (err error) {
	if row.copied, err = b.copyOf(row.layout, topicOf(0)); err != nil {
		return err
	}
	row.queues = map[string]bool{}
	for i := range row.works {
		t, err := topologyOf(row.layout.config(row.uri, growthTiers), topicOf(i))
		if err != nil {
			return err
		}
		row.topologies = append(row.topologies, t)
	}
	return with(row.uri, func(channel *amqp091.Channel) error {
		known := map[string]bool{}
		began := time.Now()
		for _, t := range row.topologies {
			for _, queue := range append(t.Queues, t.WorkQueue) {
				if queue.Name != t.DeadLetterQueue() && queue.Name != t.WorkQueue.Name {
					continue
				}
				if _, err := channel.QueueDeclare(queue.Name, queue.Durable, false, false, false,
					queue.Arguments); err != nil {
					return err
				}
				row.queues[queue.Name], known[fmt.Sprint(queue)] = true, true
			}
		}
		row.base = time.Since(began)
		before := b.memoryNow()
		began = time.Now()
		for _, t := range row.topologies {
			t.Exchanges, t.Queues = fresh(known, t.Exchanges), fresh(known, t.Queues)
			t.Bindings = fresh(known, t.Bindings)
			if err := t.DeclareRetry(channel); err != nil {
				return err
			}
			for _, queue := range t.Queues {
				row.queues[queue.Name] = true
			}
		}
		row.tiers = time.Since(began)
		row.memory = b.memoryNow() - before
		return nil
	})
}

// fresh returns what is not known yet, and remembers it.
func fresh[T any](known map[string]bool, all []T) (rest []T) {
	for _, one := range all {
		if key := fmt.Sprint(one); !known[key] {
			known[key] = true
			rest = append(rest, one)
		}
	}
	return rest
}

// publish publishes copies to all tiers of all work queues.
func (row *growthRow) publish(messages int) error {
	row.waiting += messages
	return publishAll(row.uri, messages, 0, func(i int) (exchange, key string, p amqp091.Publishing) {
		exchange, key = route(row.topologies[i%row.works], growthTiers[i/row.works%len(growthTiers)])
		return exchange, key, again(row.copied, i)
	})
}

// count waits until the messages on tiers are counted: each was routed to one queue.
func (row *growthRow) count() error {
	return with(row.uri, func(channel *amqp091.Channel) error {
		for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
			messages := 0
			for name := range row.queues {
				found, err := channel.QueueDeclarePassive(name, true, false, false, false, nil)
				if err != nil {
					return err
				}
				messages += found.Messages
			}
			if messages == row.waiting {
				return nil
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%d messages wait, %d were published", messages, row.waiting)
			}
		}
	})
}

func topicOf(n int) string { return work + "-" + strconv.Itoa(n) }
