package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
)

// startTiers are those of each handler.
var startTiers = backoff.Schedule{time.Second, 5 * time.Second, 25 * time.Second}

type startResult struct {
	broker, layout string
	consuming      []time.Duration // when each instance consumed with all its handlers, ascending
}

// A declarations counts how often the topology of each work queue is declared by one instance. It is the app's topology builder, which
// the library calls once in each declaration.
type declarations struct {
	amqp.DefaultTopologyBuilder
	mu     sync.Mutex
	byName map[string]int
}

// BuildTopology implements amqp.TopologyBuilder.
func (d *declarations) BuildTopology(
	channel *amqp091.Channel, queue, exchange string, c amqp.Config, logger watermill.LoggerAdapter,
) error {
	d.mu.Lock()
	d.byName[queue]++
	d.mu.Unlock()
	return d.DefaultTopologyBuilder.BuildTopology(channel, queue, exchange, c, logger)
}

// most is how often the queue is declared that is declared most often.
func (d *declarations) most() (most, queues int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, count := range d.byName {
		most = max(most, count)
	}
	return most, len(d.byName)
}

// A crowd is many instances of one app that start at the same time.
type crowd struct {
	layout              layout
	uri                 string
	instances, handlers int
}

// An instance is a process of the app. All have the same handlers.
type instance struct {
	declarations declarations
	wire         wire
	consuming    time.Duration
	stop         func()
	err          error
}

func topicOf(handler int) string { return "orders-" + strconv.Itoa(handler) }

func measureStart(s *server, o settings, r *report) error {
	for _, l := range layouts {
		c := crowd{layout: l, instances: 100, handlers: 16}
		if o.short {
			c.instances, c.handlers = 10, 4
		}
		if err := c.measure(s, r); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	return nil
}

func (c crowd) measure(s *server, r *report) error {
	uri, remove, err := s.vhost("start")
	if err != nil {
		return err
	}
	defer remove()
	c.uri = uri
	before := processorTime(s.process)
	instances := c.start()
	spent := processorTime(s.process) - before
	defer func() {
		var group sync.WaitGroup
		for _, i := range instances {
			if i.stop != nil {
				group.Go(i.stop)
			}
		}
		group.Wait()
	}()
	var faults []error
	var consuming []time.Duration
	most, tiers, methods := 0, 0, []float64{}
	for _, i := range instances {
		faults = append(faults, i.err)
		consuming = append(consuming, i.consuming)
		declared, queues := i.declarations.most()
		if most = max(most, declared); queues != c.handlers && i.err == nil {
			faults = append(faults, fmt.Errorf("an instance has declared %d work queues of %d", queues, c.handlers))
		}
		queueDeclares, all := i.wire.counts()
		tiers = max(tiers, queueDeclares)
		methods = append(methods, float64(all))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	slices.Sort(consuming)
	r.start = append(r.start, startResult{s.version, c.layout.name, consuming})
	r.row("start", fmt.Sprintf("%d instances with %d handlers each start together", c.instances, c.handlers),
		[]string{"RabbitMQ", "layout", "first instance consumes after", "all after", "topology declarations for each instance and work queue, at most",
			"declarations of the same queue by one instance, at most", "declarations and bindings for each instance", "processor time of the broker"},
		s.version, c.layout.name, seconds(consuming[0]), seconds(consuming[len(consuming)-1]), strconv.Itoa(most), strconv.Itoa(tiers), number(median(methods)),
		seconds(spent))
	r.claimAtMost(s, "start_declarations_"+word(c.layout.name), "", float64(most), 1)
	r.claimAtMost(s, "start_consuming_"+word(c.layout.name), "s", consuming[len(consuming)-1].Seconds(), 60)
	return nil
}

// start starts all instances, and waits until each consumes.
func (c crowd) start() []*instance {
	instances := make([]*instance, c.instances)
	gate := make(chan struct{})
	var group sync.WaitGroup
	var began time.Time
	for n := range instances {
		i := &instance{declarations: declarations{byName: map[string]int{}}}
		instances[n] = i
		group.Go(func() {
			<-gate
			if i.err = c.run(i); i.err == nil {
				i.consuming = time.Since(began)
			}
		})
	}
	began = time.Now()
	close(gate)
	group.Wait()
	return instances
}

// run starts one instance, and returns when all its handlers consume.
func (c crowd) run(i *instance) error {
	options := c.layout.config(c.uri, startTiers)
	options.AMQP.TopologyBuilder = &i.declarations
	options.AMQP.Connection.AmqpConfig = &amqp091.Config{Locale: "en_US", Dial: i.wire.dial}
	rabbit, err := config.Connect(options, nil)
	if err != nil {
		return err
	}
	router := message.NewDefaultRouter(watermill.NopLogger{})
	for n := range c.handlers {
		rabbit.AddConsumerHandler(router, "handler-"+strconv.Itoa(n), topicOf(n), func(*message.Message) error { return nil })
	}
	stop, err := runRouter(router)
	if err != nil {
		_ = rabbit.Close()
		return err
	}
	i.stop = func() { stop(); _ = rabbit.Close() }
	return nil
}

// check compares the broker's consumers with those that were started.
func (c crowd) check() error {
	return with(c.uri, func(channel *amqp091.Channel) error {
		for n := range c.handlers {
			queue, err := channel.QueueDeclarePassive(topicOf(n), true, false, false, false, nil)
			if err != nil {
				return err
			}
			if queue.Consumers != c.instances {
				return fmt.Errorf("queue %s has %d consumers, %d instances were started", topicOf(n), queue.Consumers, c.instances)
			}
		}
		return nil
	})
}
