package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

const (
	tier     = time.Second      // how long a message waits
	inFlight = 256              // of the sides that have many messages in flight
	workers  = 16               // of the others
	patience = 30 * time.Second // without progress for so long, messages are lost
)

// A side is one way to consume a work queue and to retry what fails.
type side struct {
	name    string
	since   string // the lowest version of RabbitMQ that it runs on
	queues  func(work string) topology.Topology
	declare func(*amqp091.Channel, topology.Topology) error
	consume func(uri, work string, a *app) (stop func(), err error) // returns when it consumes with all of its concurrency
}

// A result is one measurement of a side.
type result struct {
	rate   float64 // deliveries a second
	cpu    float64 // processor time of this process, in microseconds per delivery
	broker float64 // the same of the broker's process, where its id is known
}

// measure uses new queues: the messages of one measurement must not affect the next.
func (s side) measure(uri string, brokerProcess int, a *app) (r result, err error) {
	work := fmt.Sprintf("orders-%06x", rand.N(1<<24))
	t := s.queues(work)
	defer remove(uri, t)
	err = with(uri, func(channel *amqp091.Channel) error {
		if err := s.declare(channel, t); err != nil {
			return err
		}
		return fill(channel, work, len(a.calls))
	})
	if err != nil {
		return r, fmt.Errorf("%s: %w", s.name, err)
	}
	stop, err := s.consume(uri, work, a)
	if err != nil {
		return r, fmt.Errorf("%s: %w", s.name, err)
	}
	before, brokerBefore := processorTime(), processorTimeOf(brokerProcess)
	took, err := a.run(patience)
	spent, brokerSpent := processorTime()-before, processorTimeOf(brokerProcess)-brokerBefore
	if err != nil { // without a stop: a side that has lost messages may hang
		return r, fmt.Errorf("%s: %w", s.name, err)
	}
	stop()
	select {
	case err := <-a.fault:
		return r, fmt.Errorf("%s: %w", s.name, err)
	default:
	}
	if err := checkDead(uri, work+deadSuffix, a); err != nil {
		return r, fmt.Errorf("%s: %w", s.name, err)
	}
	if extra := a.extra.Load(); extra > 0 {
		fmt.Printf("%s: %d deliveries more than necessary\n", s.name, extra)
	}
	deliveries := float64(a.deliveries())
	return result{
		rate: deliveries / took.Seconds(),
		cpu:  float64(spent.Microseconds()) / deliveries, broker: float64(brokerSpent.Microseconds()) / deliveries,
	}, nil
}

// processorTime is how much processor time this process has used.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// processorTimeOf is how much processor time a process of this machine has used, read from Linux's /proc.
func processorTimeOf(process int) time.Duration {
	const tick = 10 * time.Millisecond // of utime and stime
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process))
	_, after, found := bytes.Cut(stat, []byte(") "))
	fields := strings.Fields(string(after))
	if err != nil || !found || len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * tick
}
