package main

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// A startingSide starts an app with many handlers, each with a work queue of its own, all in one group of tiers. It
// returns when all consume.
type startingSide struct {
	name  string
	start func(uri string, queues []topology.Topology) (stop func(), err error)

	memory, process, broker []float64 // in MiB, and in µs for each handler
}

// measureMany compares the start of an app with 1,000 handlers with the same by hand.
func measureMany(b *bench) error {
	handlers := b.Size(1_000, 20)
	sides := []*startingSide{{name: "library", start: manyHandlers}, {name: "by hand", start: manyByHand}}
	seconds, err := b.turns(3, len(sides), func(i int, uri string) (float64, error) {
		return sides[i].measure(b, uri, handlers)
	})
	if err != nil {
		return err
	}
	for i, s := range sides {
		b.note("%s: %d handlers consume after %s s, with %s MiB of this process; processor time for each: %s µs of "+
			"this process, %s of the broker", s.name, handlers, claims.Spread(seconds[i], "%.2f"),
			claims.Spread(s.memory, "%.1f"), claims.Spread(s.process, "%.0f"), claims.Spread(s.broker, "%.0f"))
	}
	b.ratio("start_handlers_1000", seconds[0], seconds[1])
	b.claim("start_handlers_1000_memory", claims.Median(sides[0].memory))
	return nil
}

// measure returns the time until all handlers consume. Then each queue has one consumer, and the app two connections.
func (s *startingSide) measure(b *bench, uri string, handlers int) (seconds float64, err error) {
	var queues []topology.Topology
	for n := range handlers {
		t, err := topologyOf(grouped.config(uri, startTiers), topicOf(n))
		if err != nil {
			return 0, err
		}
		queues = append(queues, t)
	}
	before, spent, began := ownMemory(), b.spentBy(), time.Now()
	stop, err := s.start(uri, queues)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.name, err)
	}
	defer stop()
	seconds = time.Since(began).Seconds()
	process, broker := spent(handlers)
	s.process, s.broker = append(s.process, process), append(s.broker, broker)
	s.memory = append(s.memory, mebibytes(ownMemory()-before))
	_, err = b.connected(uri, 2)
	return seconds, errors.Join(err, allConsume(uri, 1, handlers))
}

func manyHandlers(uri string, queues []topology.Topology) (stop func(), err error) {
	var topics []string
	for _, t := range queues {
		topics = append(topics, t.WorkQueue.Name)
	}
	rabbit, stop, err := handling{handlers: 1, concurrency: workers}.consume(grouped.config(uri, startTiers),
		func(*message.Message) error { return nil }, topics...)
	if err != nil {
		return nil, err
	}
	health := rabbit.Health()
	if err = health.Ready(); err == nil && len(health.Subscriptions) != len(queues) {
		err = fmt.Errorf("%d handlers consume, %d were added", len(health.Subscriptions), len(queues))
	}
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// manyByHand opens one connection that publishes and one that consumes. The channel of the latter declares the same
// exchanges, queues and bindings, each of them once. Then it begins one consumer after the other, with the prefetch of
// the handlers.
func manyByHand(uri string, queues []topology.Topology) (stop func(), err error) {
	_, endPublishing, err := open(uri)
	if err != nil {
		return nil, err
	}
	channel, endConsuming, err := open(uri)
	if err != nil {
		return nil, errors.Join(err, endPublishing())
	}
	var consumers sync.WaitGroup
	stop = func() { _, _ = endConsuming(), endPublishing(); consumers.Wait() }
	begin := func(queue string) error {
		deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
		if err == nil {
			consumers.Go(func() {
				for d := range deliveries {
					_ = d.Ack(false)
				}
			})
		}
		return err
	}
	known := map[string]bool{}
	err = channel.Qos(2*workers, 0, false) // of each consumer
	for _, t := range queues {
		t.Exchanges, t.Queues, t.Bindings = fresh(known, t.Exchanges), fresh(known, t.Queues), fresh(known, t.Bindings)
		if err == nil {
			err = t.Declare(channel)
		}
	}
	for _, t := range queues {
		if err == nil {
			err = begin(t.WorkQueue.Name)
		}
	}
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
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

// connected waits until a virtual host has as many connections as its apps open, and returns their names.
func (s *server) connected(uri string, want int) (names []string, err error) {
	for deadline := time.Now().Add(claims.Patience); len(names) != want; time.Sleep(100 * time.Millisecond) {
		all, err := s.management.ListVhostConnections(path.Base(uri))
		if err != nil {
			return nil, err
		}
		names = nil
		for _, c := range all {
			names = append(names, c.Name)
		}
		if len(names) > want || time.Now().After(deadline) {
			return nil, fmt.Errorf("%d connections are open, %d were expected", len(names), want)
		}
	}
	return names, nil
}

// ownMemory is what the heap and the stacks of this process use after a collection.
func ownMemory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
