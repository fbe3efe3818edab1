package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
)

const (
	partitions     = 8
	orderProcesses = 3
	orderFeeders   = 32 // each publishes one message at a time, so that those of one key stay in their order
)

// orders is the load of a row whose processes keep the order of keys.
type orders struct {
	*Load
	sink    *sink
	task    orderTask
	workers map[int]*consumerProcess
	last    int // the number of the last worker
}

func (o *orders) queue() string { return o.config.Name + ".ordered" }

func (o *orders) start(_ context.Context, fault Fault) (err error) {
	if o.sink, err = newSink(o.Load); err != nil {
		return err
	}
	direct := o.config
	if o.proxy != nil && fault.Needs&needsCluster == 0 { // only the network of the first process is disturbed
		direct.URL = o.direct
	}
	o.task = orderTask{App: o.config, Queue: o.queue(), Sink: o.sink.listener.Addr().String()}
	if fault.Needs&needsTimeout != 0 {
		o.task.ConsumerTimeout = consumerTimeout
	}
	o.workers = map[int]*consumerProcess{}
	for range orderProcesses {
		if err := o.startWorker(); err != nil {
			return err
		}
		o.task.App = direct
	}
	return nil
}

// startWorker starts a process.
func (o *orders) startWorker() error {
	o.last++
	o.task.Number = o.last
	worker, err := startProcess("order", o.task, func(event) {})
	if err == nil {
		o.workers[o.last] = worker
	}
	return err
}

func (o *orders) take(id int) *consumerProcess {
	worker := o.workers[id]
	delete(o.workers, id)
	return worker
}

// terminate ends a process as a deployment does.
func (o *orders) terminate(id int) error {
	worker := o.take(id)
	err := worker.Stop()
	o.row.Leaked = o.row.Leaked || worker.leaked
	if err != nil {
		return fmt.Errorf("a process that was told to end: %w", err)
	}
	return nil
}

// ids returns the numbers of the processes, oldest first.
func (o *orders) ids() []int { return slices.Sorted(maps.Keys(o.workers)) }

func (o *orders) publish(ctx context.Context, fault Fault) {
	o.feed(ctx, 0, o.Each*4/5, o.during(fault))
}

// feed publishes the messages from..to-1 of each key: half of the keys to the work queue, the others to the partitions.
func (o *orders) feed(ctx context.Context, from, to int, over time.Duration) {
	begin := time.Now()
	var feeders sync.WaitGroup
	for f := range orderFeeders {
		feeders.Go(func() {
			var s *feedSession
			defer func() { s.close() }()
			for n := from; n < to; n++ {
				sleep(ctx, time.Until(begin.Add(over*time.Duration(n-from)/time.Duration(to-from))))
				for k := f; k < o.Keys && ctx.Err() == nil; k += orderFeeders {
					key := fmt.Sprintf("key-%d", k)
					msg := message.NewMessage(orderIdentity(key, n), nil)
					msg.Metadata = message.Metadata{keyField: key, numberField: fmt.Sprint(n)}
					exchange, routing := "", o.queue()
					if k%2 == 0 {
						exchange, routing = naming.OrderExchange(o.queue()), fmt.Sprint(naming.PartitionOf(key, partitions))
					}
					var err error
					if s, err = o.broker.publish(ctx, s, exchange, routing, msg); err != nil {
						o.fail(err)
						continue
					}
					o.sink.confirmed(key, n)
				}
			}
		})
	}
	feeders.Wait()
}

// unmoved is how long nothing may happen while messages are open.
const unmoved = 100 * time.Second

func (o *orders) finish(ctx context.Context) error {
	o.feed(ctx, o.Each*4/5, o.Each, o.long(2*time.Second, time.Second))
	within(ctx, 8*time.Minute, func() bool {
		open, quiet := o.sink.open()
		return open == 0 || quiet > unmoved
	})
	queues := []string{o.queue()}
	for i := range partitions {
		queues = append(queues, naming.PartitionQueue(o.queue(), i))
	}
	if !within(ctx, 40*time.Second, func() bool { return o.empty(queues) }) {
		o.row.Stuck = true
		fmt.Fprintf(os.Stderr, "fault=%s broker=%s there are messages in the queues\n", o.row.Fault, o.row.Broker)
	}
	var failed []error
	for _, id := range o.ids() {
		failed = append(failed, o.terminate(id))
	}
	o.sink.close()
	return errors.Join(append(failed, context.Cause(ctx))...)
}

func (o *orders) count(ctx context.Context) error {
	dead := map[string]int{}
	if _, err := drain(ctx, o.broker, naming.DeadQueue(o.queue()), dead); err != nil {
		return err
	}
	for _, line := range o.sink.count(o.row, dead) {
		fmt.Fprintf(os.Stderr, "fault=%s broker=%s %s\n", o.row.Fault, o.row.Broker, line)
	}
	return nil
}

// end ends what is left after an error.
func (o *orders) end() {
	for _, worker := range o.workers {
		worker.Kill()
	}
	if o.sink != nil {
		o.sink.close()
	}
}
