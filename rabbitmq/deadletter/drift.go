package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/each"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/definitions"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Wanted is what one work queue needs: see topology.New.
type Wanted struct {
	Topology topology.Config
	Queue    topology.Queue // as the app itself would declare it

	// AllowUnprotectedQuorum is that of rabbitmq.Settings: it accepts, on RabbitMQ 4.0 to 4.2, a work queue that is a
	// quorum queue without a dead-letter exchange. A policy that has the exchange is enough, too.
	AllowUnprotectedQuorum bool
}

// group is the group of work queues that share the tiers, or the work queue.
func (w Wanted) group() string { return cmp.Or(w.Topology.TierGroup, w.Queue.Name) }

func (w Wanted) prefix() naming.Prefix { return naming.Of(w.Topology.Prefix) }

// Compare compares what apps declare with what is there. It changes nothing. It needs Config.Management: AMQP 0-9-1 has
// no method to read arguments, bindings and policies.
func (s *Store) Compare(ctx context.Context, wanted ...Wanted) (Report, error) {
	return s.compare(ctx, wanted, func(workqueue.Broker, Report) error { return nil })
}

// Apply declares what is missing, as an app does at its start, and returns the differences that there were. If there
// is a conflict it declares nothing, and returns ErrConflict. It does not change policies.
func (s *Store) Apply(ctx context.Context, wanted ...Wanted) (Report, error) {
	return s.compare(ctx, wanted, func(b workqueue.Broker, report Report) error {
		if n := len(report.Of(Conflict)); n > 0 {
			return fmt.Errorf("%w: %d of them; nothing is declared", ErrConflict, n)
		}
		for _, w := range wanted {
			inspector := workqueue.New(workqueue.Config{
				Prefix: w.prefix(), QueueType: w.Topology.QueueType, AllowUnprotectedQuorum: true,
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
func (s *Store) compare(
	ctx context.Context, wanted []Wanted, then func(workqueue.Broker, Report) error,
) (report Report, err error) {
	if len(wanted) == 0 {
		return Report{}, errors.New("no work queue is named: name at least one")
	}
	for i, w := range wanted {
		fault := topology.New(w.Topology, w.Queue).Validate()
		err = errors.Join(err, faults.In(fmt.Sprintf("wanted[%d].Topology", i), fault))
	}
	if err != nil {
		return Report{}, err
	}
	client, err := s.managementClient()
	if err != nil {
		return Report{}, err
	}
	ctx, end, err := s.life.Begin(ctx)
	if err != nil {
		return Report{}, err
	}
	defer end()
	connection, err := s.connect(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("cannot %w", err)
	}
	err = workqueue.Use(ctx, connection, func(b workqueue.Broker) error {
		there, err := client.Inventory(ctx)
		if err != nil {
			return err
		}
		c := comparison{version: b.Version(), vhost: connection.Client.Config.Vhost, there: there}
		if err := c.compare(wanted); err != nil {
			return err
		}
		report = c.Report
		return then(b, report)
	})
	if ctx.Err() != nil {
		return report, context.Cause(ctx)
	}
	return report, err
}

// A comparison is one call of Compare.
type comparison struct {
	Report
	version, vhost string
	there          management.Inventory
}

func (c *comparison) compare(wanted []Wanted) error {
	all, err := definitions.Merge(each.Of(wanted, c.workQueue)...)
	if err != nil {
		return err
	}
	for _, e := range all.Exchanges {
		c.exchange(e)
	}
	for _, q := range all.Queues {
		if !slices.ContainsFunc(wanted, func(w Wanted) bool { return w.Queue.Name == q.Name }) {
			c.queue(q)
		}
	}
	for _, b := range all.Bindings {
		if !c.there.Bindings[management.Binding{Exchange: b.Exchange, Queue: b.Queue, Key: b.Key}] {
			c.missing("binding", fmt.Sprintf("%s of %s with key %q", b.Queue, b.Exchange, b.Key))
		}
	}
	c.retired(wanted, all)
	kinds := []Kind{Conflict, Policy, Create, Note}
	slices.SortStableFunc(c.Differences, func(a, b Difference) int {
		return cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind))
	})
	return nil
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
	if queue.Type == amqp091.QueueTypeStream { // other advice would contradict
		c.add(Difference{
			Kind: Conflict, Object: "queue", Name: queue.Name, Argument: queuearg.QueueType, Have: queue.Type,
			Reason: workqueue.StreamReason, Advice: workqueue.StreamAdvice,
		})
		return t
	}
	have := amqp091.Table(queue.Arguments)
	if !queue.Durable && w.Queue.Durable {
		c.conflict("queue", &topology.ArgumentConflictError{
			Object: w.Queue.Name, Argument: "durable", Want: "true", Have: "false"}, deleteQueue)
	}
	for _, d := range workqueue.Conflicts(w.Queue, have) {
		c.conflict("queue", d,
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
		Advice: "a policy protects it: " + workqueue.PolicyCommand(c.vhost, w.Queue.Name, w.prefix(), quorum),
	}
	if quorum && workqueue.DropsUnprotected(c.version) && !w.AllowUnprotectedQuorum {
		d.Kind = Conflict
		d.Reason = fmt.Sprintf("RabbitMQ %s drops a message of it that is requeued 20 times, so an app refuses it",
			c.version)
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
		c.conflict("queue", d, c.advice(want, have.Arguments, d))
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
	for _, its := range [][2]amqp091.Table{{want.Arguments, amqp091.Table(have.Arguments)},
		{{"type": want.Kind}, {"type": have.Type}}, {{"durable": want.Durable}, {"durable": have.Durable}}} {
		for _, d := range workqueue.Differences(want.Name, its[0], its[1]) {
			c.conflict("exchange", d,
				"delete the exchange while no app uses it and declare it again, or use another prefix")
		}
	}
}

// retired notes the tiers of the work queues and groups that no schedule has.
func (c *comparison) retired(wanted []Wanted, all definitions.Definitions) {
	for _, name := range slices.Sorted(maps.Keys(c.there.Queues)) {
		isTier := slices.ContainsFunc(wanted, func(w Wanted) bool {
			of, _, isTier := w.prefix().TierOf(name)
			return isTier && of == w.group()
		})
		if isTier && !slices.ContainsFunc(all.Queues, func(q topology.Queue) bool { return q.Name == name }) {
			c.noteQueue(name, "no schedule has this tier any more",
				"its messages come back by themselves; when it is empty, prune it")
		}
	}
}

// otherLayout notes that a work queue also has the tiers of another prefix or group.
func (c *comparison) otherLayout(w Wanted, have amqp091.Table) {
	if other, differs := workqueue.OtherPrefix(w.Queue, have, w.prefix()); differs {
		c.add(Difference{
			Kind: Note, Object: "queue", Name: w.Queue.Name, Argument: queuearg.DeadLetterExchange, Have: other,
			Want:   w.prefix().RetryExchange(),
			Reason: workqueue.OtherPrefixReason, Advice: workqueue.OtherPrefixAdvice(other),
		})
	}
	work, group := w.Queue.Name, w.group()
	others := map[string]bool{}
	for b := range c.there.Bindings {
		of, isGroup := w.prefix().GroupOfReturn(b.Exchange)
		if isGroup && of != group && b.Queue == work && b.Key == naming.MemberKey(work) {
			others["is in the tier group "+of] = true
		}
	}
	for name := range c.there.Queues {
		if of, _, isTier := w.prefix().TierOf(name); isTier && of == work && work != group {
			others["has tiers of its own"] = true
		}
	}
	for _, other := range slices.Sorted(maps.Keys(others)) {
		c.noteQueue(work, "it also "+other, "use the earlier TierGroup, or remove the earlier tiers with wmretry tiers "+
			"prune when no instance has them any more")
	}
}

const deleteQueue = "delete the queue once it is empty and declare it again, configure the value that it has, or use " +
	"another prefix"

// settable are the arguments of a queue without one that a policy can set.
var settable = []string{queuearg.MaxLength, queuearg.MaxLengthBytes, queuearg.MessageTTL, queuearg.DeadLetterExchange,
	queuearg.DeadLetterRoutingKey, queuearg.DeliveryLimit}

// advice returns what to do about an argument of a queue of the library that differs. have are those on the broker.
func (c *comparison) advice(queue topology.Queue, have map[string]any, d *topology.ArgumentConflictError) string {
	switch {
	case d.Have == "none" && slices.Contains(settable, d.Argument):
		return "set it by a policy, and configure the app without it: " +
			workqueue.SetPolicy(c.vhost, "arguments of "+queue.Name, queue.Name, policyFor(queue, have))
	case d.Argument == queuearg.Overflow && d.Want == queuearg.DropHead && d.Have == "none":
		return "it is the default: the policy for x-max-length is enough"
	case roleOf(queue) == wait && queue.Arguments[queuearg.DeadLetterRoutingKey] == nil: // a tier, and no inbox
		return "bring home what waits on the tier, delete its queue once it is empty and declare it again, " +
			"configure the value that it has, or use another prefix"
	}
	return deleteQueue
}

// policyFor is the definition of one policy with all that the queue lacks: RabbitMQ applies one policy to a queue.
func policyFor(queue topology.Queue, have map[string]any) map[string]any {
	definition := map[string]any{}
	for _, argument := range settable {
		if value, wanted := queue.Arguments[argument]; wanted && have[argument] == nil {
			definition[strings.TrimPrefix(argument, "x-")] = value
		}
	}
	return definition
}

// ErrConflict is returned by Apply when an object exists with other arguments.
var ErrConflict = errors.New("the topology conflicts with existing objects")

// Kind is what a Difference is.
type Kind string

const (
	// Create is an object that is missing. Apply declares it.
	Create Kind = "create"
	// Conflict is an existing object with other arguments. RabbitMQ cannot change the arguments of an object: Advice
	// has what to do.
	Conflict Kind = "conflict"
	// Policy is a policy that makes a queue delete or drop messages, or shortens the delay of a tier.
	Policy Kind = "policy"
	// Note is something to know that is no drift, such as the tier of an earlier schedule.
	Note Kind = "note"
)

// Difference is one difference between what apps declare and what is on the broker.
type Difference struct {
	Kind     Kind   `json:"kind"`
	Object   string `json:"object"` // exchange, queue, binding, or broker
	Name     string `json:"name"`   // the name of the exchange or queue
	Argument string `json:"argument,omitzero"`
	Want     string `json:"want,omitzero"`   // the value asked for, "none" without one
	Have     string `json:"have,omitzero"`   // the value that is there, "none" without one
	Reason   string `json:"reason,omitzero"` // why it matters, or why it cannot be changed
	Advice   string `json:"advice,omitzero"` // what to do
}

// String returns the difference as one line.
func (d Difference) String() string {
	argument := ""
	if d.Argument != "" {
		argument = d.Argument + " is " + d.Have
		if d.Want != "" {
			argument += ", wanted is " + d.Want
		}
	}
	parts := []string{d.Object + " " + d.Name, argument, d.Reason, d.Advice}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
}

// Report is what Compare has found.
type Report struct {
	Differences []Difference `json:"differences"`
}

// Drifted reports whether there is any difference besides notes.
func (r Report) Drifted() bool {
	return slices.ContainsFunc(r.Differences, func(d Difference) bool { return d.Kind != Note })
}

// Of returns the differences of a kind.
func (r Report) Of(kind Kind) []Difference {
	return slices.DeleteFunc(slices.Clone(r.Differences), func(d Difference) bool { return d.Kind != kind })
}

func (r *Report) add(d Difference) { r.Differences = append(r.Differences, d) }

// noteQueue adds something to know of a queue.
func (r *Report) noteQueue(name, reason, advice string) {
	r.add(Difference{Kind: Note, Object: "queue", Name: name, Reason: reason, Advice: advice})
}

// missing adds an object that is not there.
func (r *Report) missing(object, name string) {
	r.add(Difference{Kind: Create, Object: object, Name: name})
}

// conflict adds an argument that cannot be changed.
func (r *Report) conflict(object string, d *topology.ArgumentConflictError, advice string) {
	r.add(Difference{
		Kind: Conflict, Object: object, Name: d.Object, Argument: d.Argument, Want: d.Want, Have: d.Have,
		Reason: "RabbitMQ cannot change the arguments of an existing object", Advice: advice,
	})
}
