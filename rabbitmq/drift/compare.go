package drift

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// ErrConflict is returned by Apply when an object exists with other arguments.
var ErrConflict = errors.New("the topology conflicts with existing objects")

// Compare compares what apps declare with what is there. It changes nothing.
func Compare(ctx context.Context, config Config, wanted ...Wanted) (Report, error) {
	return config.compare(ctx, wanted, func(workqueue.Broker, Report) error { return nil })
}

// Apply declares what is missing, as an app does at its start, and returns the differences that there were. If there
// is a conflict it declares nothing, and returns ErrConflict. It does not change policies.
func Apply(ctx context.Context, config Config, wanted ...Wanted) (Report, error) {
	return config.compare(ctx, wanted, func(b workqueue.Broker, report Report) error {
		if n := len(report.Of(Conflict)); n > 0 {
			return fmt.Errorf("%w: %d of them; nothing is declared", ErrConflict, n)
		}
		for _, w := range wanted {
			inspector := workqueue.New(workqueue.Config{
				Prefix: prefixOf(w), QueueType: w.Topology.QueueType, AllowUnprotectedQuorum: true,
				DeadLetters: w.Topology.DeadLetters,
			})
			t, err := inspector.Inspect(b, w.Topology, w.Queue, watermill.NopLogger{})
			if err == nil {
				err = inspector.DeclareRetry(b, t, t.DeclareRetry)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// compare compares, and calls then with the result.
func (c Config) compare(
	ctx context.Context, wanted []Wanted, then func(workqueue.Broker, Report) error,
) (report Report, err error) {
	if err := c.validate(wanted); err != nil {
		return Report{}, err
	}
	err = c.connect(ctx, func(b workqueue.Broker, vhost string) error {
		if report, err = compare(ctx, c, b, vhost, wanted); err != nil {
			return err
		}
		return then(b, report)
	})
	return report, err
}

func prefixOf(w Wanted) naming.Prefix {
	if w.Topology.Prefix == "" {
		return naming.Default
	}
	return naming.Prefix(w.Topology.Prefix)
}

// A comparison is one call of Compare.
type comparison struct {
	Report
	config Config
	broker workqueue.Broker
	vhost  string
	there  management.Inventory
}

func compare(ctx context.Context, config Config, b workqueue.Broker, vhost string, wanted []Wanted) (Report, error) {
	there, err := read(ctx, config, vhost)
	if err != nil {
		return Report{}, err
	}
	c := comparison{config: config, broker: b, vhost: vhost, there: there}
	var topologies []topology.Topology
	works := map[string]bool{}
	for _, w := range wanted {
		topologies = append(topologies, c.workQueue(w))
		works[w.Queue.Name] = true
	}
	all, err := topology.Merge(topologies...)
	if err != nil {
		return Report{}, err
	}
	for _, e := range all.Exchanges {
		c.exchange(e)
	}
	for _, q := range all.Queues {
		if !works[q.Name] {
			c.queue(q)
		}
	}
	for _, b := range all.Bindings {
		if !there.Bindings[management.Binding{Exchange: b.Exchange, Queue: b.Queue, Key: b.Key}] {
			c.missing("binding", fmt.Sprintf("%s of %s with key %q", b.Queue, b.Exchange, b.Key))
		}
	}
	c.retired(wanted, all)
	c.sort()
	return c.Report, nil
}

// workQueue compares a work queue. The topology that it returns is that of the queue as it exists: an app leaves an
// existing queue as it is.
func (c *comparison) workQueue(w Wanted) topology.Topology {
	t := topology.New(w.Topology, w.Queue)
	queue, exists := c.there.Queues[w.Queue.Name]
	if !exists {
		c.missing("queue", w.Queue.Name)
		return t
	}
	have := amqp091.Table(queue.Arguments)
	if !queue.Durable && w.Queue.Durable {
		c.conflict("queue", w.Queue.Name,
			&topology.ArgumentConflictError{Argument: "durable", Want: "true", Have: "false"}, deleteQueue)
	}
	for _, d := range workqueue.Conflicts(w.Queue, have) {
		c.conflict("queue", d.Object, d,
			"configure the app with the value that the work queue has, or delete the queue once it is empty")
	}
	c.protection(w, have)
	c.policies(handle, topology.Queue{Name: w.Queue.Name, Arguments: have}, queue)
	c.deadLetterPolicy(w, queue)
	c.otherLayout(w, have)
	existing := workqueue.Existing(w.Topology, w.Queue, have)
	if err := existing.Validate(); err != nil {
		c.add(Difference{Kind: Conflict, Object: "queue", Name: w.Queue.Name, Reason: err.Error()})
		return t
	}
	return existing
}

// protection reports a work queue that drops what the broker gives up.
func (c *comparison) protection(w Wanted, have amqp091.Table) {
	if w.Topology.WorkQueueMode == topology.Leave || have[queuearg.DeadLetterExchange] != nil ||
		c.there.Queues[w.Queue.Name].Effective["dead-letter-exchange"] != nil {
		return
	}
	quorum := have[queuearg.QueueType] == string(topology.Quorum)
	d := Difference{
		Kind: Note, Object: "queue", Name: w.Queue.Name, Argument: queuearg.DeadLetterExchange, Have: "none",
		Reason: "a message that the broker itself gives up is dropped",
		Advice: "a policy protects it: " + workqueue.PolicyCommand(c.vhost, w.Queue.Name, prefixOf(w), quorum),
	}
	if quorum && workqueue.DropsUnprotected(c.broker.Version()) && !c.config.AllowUnprotectedQuorum {
		d.Kind = Conflict
		d.Reason = fmt.Sprintf("RabbitMQ %s drops a message of it that is requeued 20 times, so an app refuses it",
			c.broker.Version())
	}
	c.add(d)
}

// queue compares a queue of the library.
func (c *comparison) queue(want topology.Queue) {
	have, exists := c.there.Queues[want.Name]
	if !exists {
		c.missing("queue", want.Name)
		return
	}
	for _, d := range workqueue.Differences(want.Name, want.Arguments, amqp091.Table(have.Arguments)) {
		c.conflict("queue", d.Object, d, c.advice(want, have.Arguments, d))
	}
	c.policies(roleOf(want), want, have)
}

// exchange compares an exchange.
func (c *comparison) exchange(want topology.Exchange) {
	have, exists := c.there.Exchanges[want.Name]
	if !exists {
		c.missing("exchange", want.Name)
		return
	}
	differs := workqueue.Differences(want.Name, want.Arguments, amqp091.Table(have.Arguments))
	if have.Type != want.Kind {
		differs = append(differs, &topology.ArgumentConflictError{Argument: "type", Want: want.Kind, Have: have.Type})
	}
	if have.Durable != want.Durable {
		differs = append(differs, &topology.ArgumentConflictError{Argument: "durable", Want: fmt.Sprint(want.Durable),
			Have: fmt.Sprint(have.Durable)})
	}
	for _, d := range differs {
		c.conflict("exchange", want.Name, d, deleteExchange)
	}
}
