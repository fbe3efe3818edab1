package door

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// A declarer declares what handlers need on the broker, over the connection that consumes: for each queue once on each
// connection, and again when it may be gone. While the queues are consumed, it binds them again to the return exchange.
// It is safe for concurrent use. Close it after the connection.
type declarer struct {
	core       *core
	publishing *publisher.Connection
	returns    *returns
	control    *control

	sharing chan struct{} // has a value while exchanges are declared for the first time

	mu         sync.Mutex
	connection uint64
	queues     map[string]*declaredQueue // of this connection
	objects    map[any]bool              // the exchanges, queues and bindings that are declared on this connection
	holding    map[string]bool           // the queues on which messages wait, of all connections
	works      map[string][]string       // the queues of the topology of each work queue, of all connections
}

// A declaredQueue is what has been declared for a work queue on one connection.
type declaredQueue struct {
	mu        sync.Mutex
	running   *declaring // nil: none
	begin     time.Time  // when the declaration began that has succeeded
	arguments amqp091.Table
	queues    map[string]bool // the tiers and the other queues of its topology
	topics    map[string]bool // for which the app's own topology is declared
	bound     time.Time       // when bind began
}

// declaring is a declaration that is running, or has ended.
type declaring struct {
	key   string
	begin time.Time
	done  chan struct{}
	err   error // set before done is closed
}

func newDeclarer(
	c *core, consuming *subscriber.Connection, publishing *publisher.Connection, logger watermill.LoggerAdapter,
) *declarer {
	return &declarer{core: c, publishing: publishing, sharing: make(chan struct{}, 1),
		holding: map[string]bool{}, works: map[string][]string{},
		control: newControl(c, consuming, publishing, logger), returns: newReturns(c, consuming, logger)}
}

// close ends the goroutines of the declarer.
func (d *declarer) close() {
	d.control.close()
	d.returns.close()
}

// declare declares the work queue of a subscription, its topology, which has the tiers of all handlers of the queue,
// and the app's own topology of the topic. Calls for one work queue wait for each other, and those that need the same
// share the result.
func (d *declarer) declare(from *subscriber.Declaration, s app.Subscription) error {
	config := d.core.topologyConfig(s.Queue)
	t := topology.New(config, d.core.workQueue(s.Queue))
	if err := errors.Join(t.Validate(), d.core.prefix.ValidateExchange(s.Exchange, t.Group())); err != nil {
		return err
	}
	if config.Partitions > 0 {
		if err := checkSingle(from.Broker.Version()); err != nil {
			return err
		}
	}
	q, err := d.queue(from.Broker.Number(), s.Queue)
	if err != nil {
		return err
	}
	names := queueNames(t)
	key := strings.Join(append(names, s.Topic, s.Exchange), "\n")
	for {
		q.mu.Lock()
		if q.has(from.LostAt, names, s.Topic) {
			q.mu.Unlock()
			return nil
		}
		if other := q.running; other != nil {
			q.mu.Unlock()
			<-other.done
			if other.err != nil && other.key == key && other.begin.After(from.LostAt) {
				return other.err
			}
			continue
		}
		own := &declaring{key: key, begin: time.Now(), done: make(chan struct{}), err: errPanicked}
		q.running = own
		q.mu.Unlock()
		return d.run(q, own, from, s, config)
	}
}

var errPanicked = errors.New("the app's topology builder has panicked")

// queue returns the memory of a work queue on a connection.
func (d *declarer) queue(connection uint64, name string) (*declaredQueue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if connection < d.connection {
		return nil, fmt.Errorf("cannot declare work queue %q: its connection is lost: %w", name, amqp091.ErrClosed)
	}
	if connection > d.connection {
		d.connection, d.queues, d.objects = connection, map[string]*declaredQueue{}, map[any]bool{}
	}
	q := d.queues[name]
	if q == nil {
		q = &declaredQueue{queues: map[string]bool{}, topics: map[string]bool{}}
		d.queues[name] = q
	}
	return q, nil
}

func queueNames(t topology.Topology) (names []string) {
	for _, queue := range t.Queues {
		names = append(names, queue.Name)
	}
	return names
}

// has reports whether everything was declared after lostAt.
func (q *declaredQueue) has(lostAt time.Time, queues []string, topic string) bool {
	return q.begin.After(lostAt) && q.hasQueues(queues) && q.topics[topic]
}

func (q *declaredQueue) hasQueues(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !q.queues[name] })
}

// run declares what is missing, and ends own. Only the running declaration changes the memory.
func (d *declarer) run(
	q *declaredQueue, own *declaring, from *subscriber.Declaration, s app.Subscription, config topology.Config,
) error {
	defer func() {
		q.mu.Lock()
		q.running = nil
		q.mu.Unlock()
		close(own.done)
	}()
	inspector, work := d.core.inspector, d.core.workQueue(s.Queue)
	t := topology.New(config, work)
	asked := queueNames(t)
	known := q.begin.After(from.LostAt)
	var arguments amqp091.Table
	if known {
		arguments = q.arguments
		t = workqueue.Existing(config, work, arguments)
	}
	declareRetry := topology.Topology.DeclareRetry
	if q.begin.IsZero() {
		declareRetry = func(t topology.Topology, channel *amqp091.Channel) error {
			return d.declareFirst(from, t, channel)
		}
	}
	var err error
	switch broker := (inspected{from, d.publishing}); {
	case d.core.verifyOnly:
		err = inspector.Check(broker, config, work, s.Logger)
	case !known:
		if arguments, err = inspector.Declare(broker, config, work, declareRetry, s.Logger); err == nil {
			t = workqueue.Existing(config, work, arguments)
		}
	case !q.hasQueues(queueNames(t)):
		var channel *amqp091.Channel
		if channel, err = from.Channel(); err == nil {
			err = t.DeclareRetry(channel)
		}
	}
	if err == nil && !d.core.verifyOnly && !(known && q.topics[s.Topic]) {
		if s.Channel, err = from.Channel(); err == nil {
			err = d.core.app.DeclareTopology(s, maps.Clone(arguments))
		}
		if err != nil {
			err = refusal.Explain("declare the app's own topology of queue", s.Queue, err)
		}
	}
	own.err = err
	if err != nil {
		return err
	}
	q.mu.Lock()
	if !known {
		q.begin, q.arguments = own.begin, arguments
		clear(q.queues)
		clear(q.topics)
	}
	for _, name := range append(asked, queueNames(t)...) {
		q.queues[name] = true
	}
	q.topics[s.Topic] = true
	q.mu.Unlock()
	d.mu.Lock()
	d.works[s.Queue] = queueNames(t)
	d.mu.Unlock()
	d.returns.add(from.Broker, t)
	if config.Partitions > 0 {
		d.control.add(from.Broker)
	}
	return nil
}

// bindAgain is how long a bind serves for all handlers of a queue that begin to consume: those that start together.
const bindAgain = 5 * time.Second

// bind binds a work queue that is consumed, and declares the app's own topology of the topic.
func (d *declarer) bind(from *subscriber.Declaration, s app.Subscription) error {
	if d.core.verifyOnly {
		return nil
	}
	q, err := d.queue(from.Broker.Number(), s.Queue)
	if err != nil {
		return err
	}
	q.mu.Lock()
	arguments, done := q.arguments, q.bound.After(q.begin) && q.bound.After(from.LostAt) &&
		time.Since(q.bound) < bindAgain
	if !done {
		q.bound = time.Now()
	}
	q.mu.Unlock()
	if done {
		return nil
	}
	if s.Channel, err = from.Channel(); err != nil {
		return err
	}
	t := workqueue.Existing(d.core.topologyConfig(s.Queue), d.core.workQueue(s.Queue), arguments)
	if err = bindAll(s.Channel, d.returns.lastingBindings(t)); err != nil || s.Exchange == "" {
		return err
	}
	return d.core.app.DeclareTopology(s, maps.Clone(arguments))
}

// mayBeQuorum reports whether a queue is a quorum queue, or its type is not known.
func (d *declarer) mayBeQuorum(name string) bool {
	d.mu.Lock()
	q := d.queues[name]
	d.mu.Unlock()
	if q == nil || d.core.verifyOnly {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.arguments[queuearg.QueueType] == string(topology.Quorum)
}

// inspected is the workqueue.Broker of a declaration.
type inspected struct {
	*subscriber.Declaration
	publishing *publisher.Connection
}

func (i inspected) Version() string { return i.Broker.Version() }

func (i inspected) Publishing(ctx context.Context) (*amqp091.Channel, error) {
	return i.publishing.Channel(ctx)
}

// declareFirst declares for the first time on a connection what a work queue needs. What it shares with other work
// queues, such as the tiers of a group, is declared once: the others wait for it.
func (d *declarer) declareFirst(from *subscriber.Declaration, t topology.Topology, channel *amqp091.Channel) error {
	d.sharing <- struct{}{}
	own := d.undeclared(from.Broker.Number(), t)
	shares := len(own.Exchanges) == 0
	if shares {
		<-d.sharing
	} else {
		defer func() { <-d.sharing }()
	}
	err := own.DeclareRetry(channel)
	if shares && refusal.IsCode(err, amqp091.NotFound) { // of what was declared, something is gone
		if channel, err = from.Channel(); err == nil {
			err = t.DeclareRetry(channel)
		}
	}
	if err == nil {
		d.declared(from.Broker.Number(), t)
	}
	return err
}

// undeclared returns a topology without the objects that have been declared on a connection.
func (d *declarer) undeclared(connection uint64, t topology.Topology) topology.Topology {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.connection != connection {
		return t
	}
	t.Exchanges = slices.DeleteFunc(slices.Clone(t.Exchanges), func(e topology.Exchange) bool {
		return d.objects[exchangeName(e.Name)]
	})
	t.Queues = slices.DeleteFunc(slices.Clone(t.Queues), func(q topology.Queue) bool {
		return d.objects[queueName(q.Name)]
	})
	t.Bindings = slices.DeleteFunc(slices.Clone(t.Bindings), func(b topology.Binding) bool { return d.objects[b] })
	return t
}

// declared remembers the objects of a topology.
func (d *declarer) declared(connection uint64, t topology.Topology) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range t.Queues {
		if _, expires := q.Arguments[queuearg.MessageTTL]; expires {
			d.holding[q.Name] = true
		}
	}
	if d.connection != connection {
		return
	}
	for _, e := range t.Exchanges {
		d.objects[exchangeName(e.Name)] = true
	}
	for _, q := range t.Queues {
		d.objects[queueName(q.Name)] = true
	}
	for _, b := range t.Bindings {
		d.objects[b] = true
	}
}

// waiting returns the tiers and inboxes that were declared or verified.
func (d *declarer) waiting() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.holding))
}

// workQueues returns the work queues that were declared or verified, and the other queues of their topologies.
func (d *declarer) workQueues() map[string][]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.works)
}

type exchangeName string
type queueName string
