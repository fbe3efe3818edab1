package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// startTiers are those of each handler.
var startTiers = backoff.Schedule{time.Second, 5 * time.Second, 25 * time.Second}

// An instance is a process of an app. It is the app's topology builder, which the library calls once in each
// declaration: it counts how often the topology of each work queue is declared.
type instance struct {
	amqp.DefaultTopologyBuilder
	mu        sync.Mutex
	declared  map[string]int
	consuming time.Duration
	stop      func()
	err       error
}

// BuildTopology implements amqp.TopologyBuilder.
func (i *instance) BuildTopology(
	channel *amqp091.Channel, queue, exchange string, c amqp.Config, logger watermill.LoggerAdapter,
) error {
	i.mu.Lock()
	i.declared[queue]++
	i.mu.Unlock()
	return i.DefaultTopologyBuilder.BuildTopology(channel, queue, exchange, c, logger)
}

// startAll starts instances of one app at the same time, and waits until each consumes all topics. The result stops
// them.
func startAll(l layout, uri string, instances, topics int) (all []*instance, stop func()) {
	var names []string
	for n := range topics {
		names = append(names, topicOf(n))
	}
	gate := make(chan struct{})
	var group sync.WaitGroup
	began := time.Now()
	for range instances {
		i := &instance{declared: map[string]int{}, stop: func() {}}
		all = append(all, i)
		group.Go(func() {
			<-gate
			c := l.config(uri, startTiers)
			c.AMQP.TopologyBuilder = i
			_, stop, err := handling{handlers: 1, concurrency: workers}.consume(c,
				func(*message.Message) error { return nil }, names...)
			if i.err = err; err == nil {
				i.stop, i.consuming = stop, time.Since(began)
			}
		})
	}
	close(gate)
	group.Wait()
	return all, func() {
		for _, i := range all {
			group.Go(i.stop)
		}
		group.Wait()
	}
}

// measureStart starts 100 instances of one app.
func measureStart(b *bench) error {
	instances, topics := b.size(100, 10), b.size(16, 4)
	for _, l := range []layout{perQueue, grouped} {
		err := b.in("start", func(uri string) error {
			spent := b.spentBy()
			all, stop := startAll(l, uri, instances, topics)
			_, ofBroker := spent(instances)
			defer stop()
			most, last := 0, time.Duration(0)
			for _, i := range all {
				if i.err == nil && len(i.declared) != topics {
					i.err = fmt.Errorf("an instance has declared %d work queues of %d", len(i.declared), topics)
				}
				if i.err != nil {
					return i.err
				}
				for _, times := range i.declared {
					most = max(most, times)
				}
				last = max(last, i.consuming)
			}
			b.note("%s: %d instances with %d handlers, %s µs of the broker for each", l.name, instances, topics,
				claims.Digits(ofBroker))
			b.claim("start_declarations_"+l.name, float64(most))
			b.claim("start_consuming_"+l.name, last.Seconds())
			return allConsume(uri, instances, topics)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	return nil
}

// allConsume compares the broker's consumers with those that were started.
func allConsume(uri string, instances, topics int) error {
	return with(uri, func(channel *amqp091.Channel) error {
		for n := range topics {
			queue, err := channel.QueueDeclarePassive(topicOf(n), true, false, false, false, nil)
			if err == nil && queue.Consumers != instances {
				err = fmt.Errorf("queue %s has %d consumers, %d instances were started", queue.Name, queue.Consumers,
					instances)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// measureCrowd starts 16 instances of a new app together, each of which then deletes the queues of the app, and the
// others declare them again. It stops at the first round after which the broker starts no quorum queue any more: it
// has to be restarted then. The short form deletes nothing.
func measureCrowd(b *bench) error {
	rounds := b.turns(20)
	for round := range rounds {
		err := b.in("crowd", func(uri string) error {
			all, stop := startAll(perQueue, uri, 16, 1)
			var faults []error
			for _, i := range all {
				faults = append(faults, i.err)
			}
			t, err := topologyOf(perQueue.config(uri, startTiers), topicOf(0))
			if faults = append(faults, err); !b.short && errors.Join(faults...) == nil {
				var group sync.WaitGroup
				for range all {
					group.Go(func() { _ = deleteQueues(uri, t) })
				}
				group.Wait()
				time.Sleep(3 * time.Second) // the instances declare again
			}
			stop()
			if err := declare(uri, perQueue.config(uri, startTiers), "afterwards"); err != nil {
				faults = append(faults, fmt.Errorf("the broker starts no quorum queue any more, restart it: %w", err))
			}
			return errors.Join(faults...)
		})
		if err != nil {
			return fmt.Errorf("round %d of %d with 16 instances: %w", round+1, rounds, err)
		}
	}
	b.claim("crowd_rounds_that_fail", 0)
	return nil
}

func deleteQueues(uri string, t topology.Topology) error {
	return with(uri, func(channel *amqp091.Channel) error {
		for _, queue := range append([]topology.Queue{t.WorkQueue}, t.Queues...) {
			if _, err := channel.QueueDelete(queue.Name, false, false, false); err != nil {
				return err
			}
		}
		return nil
	})
}
