package main

import (
	"fmt"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// growthTiers are six, of which no message comes back while the run lasts.
var growthTiers = backoff.Schedule{time.Hour, 2 * time.Hour, 3 * time.Hour, 4 * time.Hour, 5 * time.Hour, 6 * time.Hour}

type growthResult struct {
	broker, layout string
	queues         int // work queues
	declare        time.Duration
	publish        float64
}

// A growthRow is one layout with a number of work queues, in a virtual host of its own.
type growthRow struct {
	layout layout
	works  int

	uri     string
	topics  []string
	copier  *copier
	remove  func()
	queues  int           // on the broker
	base    time.Duration // to declare work queues, dead letters, orphans
	tiers   time.Duration // to declare tiers and bindings
	memory  int64         // that the tiers and bindings need
	rates   []float64     // of each round
	waiting int
}

// growthRows are measured by default without 1,000 work queues with tiers for each: 6,000 queues take minutes.
func growthRows(o settings) (rows []*growthRow) {
	counts := []int{10, 100, 1_000}
	if o.short {
		counts = []int{3, 10}
	}
	for _, l := range layouts {
		for _, works := range counts {
			if works <= 100 || l.shared || o.all {
				rows = append(rows, &growthRow{layout: l, works: works})
			}
		}
	}
	return rows
}

// measureGrowth sets up all rows first, and then publishes to them in turns.
func measureGrowth(s *server, o settings, r *report) error {
	rows := growthRows(o)
	defer func() {
		for _, row := range rows {
			row.close()
		}
	}()
	for _, row := range rows {
		if err := row.setUp(s, o); err != nil {
			return fmt.Errorf("%d work queues, %s: %w", row.works, row.layout.name, err)
		}
		fmt.Printf("%s, %d work queues: declared in %v and %v\n", row.layout.name, row.works, row.base.Round(time.Millisecond), row.tiers.Round(time.Millisecond))
	}
	batch := 5_000
	if o.short {
		batch = 200
	}
	for round := range max(o.rounds/4, 1) {
		for i := range rows {
			row := rows[(i+round)%len(rows)] // another row is first in each round
			if err := row.publish(batch); err != nil {
				return fmt.Errorf("%d work queues, %s: %w", row.works, row.layout.name, err)
			}
		}
	}
	for _, row := range rows {
		if err := row.count(); err != nil {
			return err
		}
		rate := median(row.rates)
		r.growth = append(r.growth, growthResult{s.version, row.layout.name, row.works, row.tiers, rate})
		r.row("growth", "Many work queues", []string{"RabbitMQ", "layout", "work queues", "queues on the broker", "tiers and bindings declared in",
			"everything declared in", "memory of tiers and bindings", "published a second"},
			s.version, row.layout.name, number(float64(row.works)), number(float64(row.queues)), seconds(row.tiers), seconds(row.base+row.tiers),
			mebibytes(row.memory), number(rate))
	}
	growthClaims(s, rows, r)
	return nil
}

// growthClaims compares the most work queues with the fewest, of layouts that share tiers.
func growthClaims(s *server, rows []*growthRow, r *report) {
	for _, l := range layouts {
		if !l.shared {
			continue
		}
		var few, many *growthRow
		for _, row := range rows {
			if row.layout.name == l.name {
				if few == nil {
					few = row
				}
				many = row
			}
		}
		ratios := make([]float64, len(few.rates))
		for round := range ratios {
			ratios[round] = many.rates[round] / few.rates[round]
		}
		r.claimAtMost(s, fmt.Sprintf("declare_%s_%d", word(l.name), many.works), "s", many.tiers.Seconds(), 15)
		r.claimAtLeast(s, fmt.Sprintf("publish_%s_%d_to_%d", word(l.name), many.works, few.works), "", median(ratios), 0.8)
	}
}

// setUp declares first what a work queue needs without tiers, and then everything: only tiers and bindings are new then.
func (row *growthRow) setUp(s *server, o settings) error {
	uri, remove, err := s.vhost("growth")
	if err != nil {
		return err
	}
	row.uri, row.remove = uri, remove
	c := row.layout.config(uri, growthTiers)
	builder, err := config.NewBuilder(c)
	if err != nil {
		return err
	}
	for i := range row.works {
		row.topics = append(row.topics, "orders-"+strconv.Itoa(i))
	}
	if row.copier, err = newCopier(c); err != nil {
		return err
	}
	return with(uri, func(channel *amqp091.Channel) error {
		known, began := declared{}, time.Now()
		for _, topic := range row.topics {
			t := builder.Topology(topic)
			for _, queue := range append(t.Queues, t.WorkQueue) {
				if queue.Name != t.DeadLetterQueue() && queue.Name != topic {
					continue
				}
				if _, err := channel.QueueDeclare(queue.Name, queue.Durable, false, false, false, queue.Arguments); err != nil {
					return err
				}
				known[queue.Name] = true
			}
		}
		row.base = time.Since(began)
		before := s.memoryNow(o.short)
		began = time.Now()
		for _, topic := range row.topics {
			if err := known.missing(builder.Topology(topic)).DeclareRetry(channel); err != nil {
				return err
			}
		}
		row.tiers = time.Since(began)
		row.memory = s.memoryNow(o.short) - before
		return nil
	})
}

// declared are the names of queues and exchanges that exist. Connect also declares each only once.
type declared map[string]bool

// missing returns a topology without what is declared, and remembers the rest.
func (d declared) missing(t topology.Topology) topology.Topology {
	unknown := func(name string) bool {
		known := d[name]
		d[name] = true
		return !known
	}
	var exchanges []topology.Exchange
	for _, exchange := range t.Exchanges {
		if unknown("exchange " + exchange.Name) {
			exchanges = append(exchanges, exchange)
		}
	}
	var queues []topology.Queue
	for _, queue := range t.Queues {
		if unknown(queue.Name) {
			queues = append(queues, queue)
		}
	}
	var bindings []topology.Binding
	for _, b := range t.Bindings {
		if unknown(fmt.Sprint("binding ", b)) {
			bindings = append(bindings, b)
		}
	}
	t.Exchanges, t.Queues, t.Bindings = exchanges, queues, bindings
	return t
}

// publish publishes copies to all tiers of all work queues.
func (row *growthRow) publish(messages int) error {
	tiers := row.copier.config.Tiers()
	began := time.Now()
	err := publishAll(messages, func(i int) error {
		topic, tier := row.topics[i%row.works], tiers[i/row.works%len(tiers)]
		return row.copier.publish(idOf(i), topic, tier, failedOnce(topic, began, time.Duration(tier)))
	})
	row.rates = append(row.rates, float64(messages)/time.Since(began).Seconds())
	row.waiting += messages
	return err
}

// count counts queues, and the messages on tiers: each was routed to one queue.
func (row *growthRow) count() error {
	builder, err := config.NewBuilder(row.layout.config(row.uri, growthTiers))
	if err != nil {
		return err
	}
	return with(row.uri, func(channel *amqp091.Channel) error {
		queues, messages := map[string]bool{}, 0
		for _, topic := range row.topics {
			t := builder.Topology(topic)
			queues[topic] = true
			for _, queue := range t.Queues {
				if queues[queue.Name] {
					continue
				}
				queues[queue.Name] = true
				found, err := channel.QueueDeclarePassive(queue.Name, queue.Durable, false, false, false, nil)
				if err != nil {
					return err
				}
				messages += found.Messages
			}
		}
		row.queues = len(queues)
		if messages != row.waiting {
			return fmt.Errorf("%d work queues, %s: %d messages wait, %d were published", row.works, row.layout.name, messages, row.waiting)
		}
		return nil
	})
}

func (row *growthRow) close() {
	if row.copier != nil {
		row.copier.close()
	}
	if row.remove != nil {
		row.remove()
	}
}
