package door

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// core is the part of a Builder that does not depend on the major.
type core struct {
	app        app.Config      // does not change
	topology   topology.Config // with all tiers
	policy     retry.Policy
	prefix     naming.Prefix
	verifyOnly bool
	inspector  *workqueue.Inspector
	queues     *queues         // nil for a Builder: every work queue has the tiers of the schedule
	closed     context.Context // ends with the Close of a Builder
	observers  *backend.Observers

	once wire.Once[deed] // what was declared on a connection

	mu    sync.Mutex
	works map[string]topology.Topology // each work queue as it was declared or verified last, on any connection
}

// A deed is what a core does once on a connection.
type deed struct{ what, of string }

func (c *core) String() string {
	if c == nil {
		return "Builder(none)"
	}
	return "Builder" + c.description()
}

func (c *core) description() string {
	return fmt.Sprintf("(%s, prefix %s, schedule %v)", wire.RedactedURI(c.app.URI), c.prefix, c.policy.Schedule)
}

// address returns where the app connects to, without a password.
func (c *core) address() amqp091.URI {
	uri, _ := amqp091.ParseURI(c.app.URI)                       // validated
	if own := c.app.Connection; own != nil && own.Vhost != "" { // amqp091-go prefers it, too
		uri.Vhost = own.Vhost
	}
	return uri
}

// broker describes the broker and the prefix, for errors.
func (c *core) broker() string {
	uri := c.address()
	address := url.URL{Scheme: uri.Scheme, Host: net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), Path: "/"}
	if uri.Vhost != "/" {
		address.Path, address.RawPath = "/"+uri.Vhost, "/"+url.PathEscape(uri.Vhost)
	}
	return fmt.Sprintf("%s (prefix %s)", address.String(), c.prefix)
}

func (c *core) wire() wire.Config {
	return wire.Config{URI: c.app.URI, AMQP: app.CopyConnection(c.app.Connection), TLS: c.app.TLS.Clone()}
}

// topologyConfig has the group and the tiers of one work queue.
func (c *core) topologyConfig(queue string) topology.Config {
	config := c.topology
	if group, tiers, found := c.queues.of(queue); found {
		config.TierGroup, config.Tiers = group, tiers
	}
	if in := c.queues.order(queue); in.partitions > 0 {
		config.Partitions, config.Prefetch = in.partitions, in.prefetch
	}
	return config
}

// topologyOf returns the topology of a work queue that does not exist.
func (c *core) topologyOf(queue string) topology.Topology {
	return topology.New(c.topologyConfig(queue), c.workQueue(queue))
}

// existing returns the topology of a work queue as it was declared or verified last, and else that of one that does not
// exist.
func (c *core) existing(queue string) (t topology.Topology, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t, known = c.works[queue]; known {
		return t, true
	}
	return c.topologyOf(queue), false
}

// remember returns the topology of a work queue that exists with these arguments, with the tiers of all handlers.
func (c *core) remember(queue string, arguments amqp091.Table) topology.Topology {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.works == nil {
		c.works = map[string]topology.Topology{}
	}
	c.works[queue] = workqueue.Existing(c.topologyConfig(queue), c.workQueue(queue), arguments)
	return c.works[queue]
}

// workQueues returns the topologies of the work queues that were declared or verified.
func (c *core) workQueues() map[string]topology.Topology {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.works)
}

// waiting returns the tiers and inboxes that were declared or verified.
func (c *core) waiting() []string {
	names := map[string]bool{}
	for _, t := range c.workQueues() {
		for _, q := range t.Queues {
			if _, expires := q.Arguments[queuearg.MessageTTL]; expires {
				names[q.Name] = true
			}
		}
	}
	return slices.Collect(maps.Keys(names))
}

// workQueue returns a work queue as the app's configuration describes it.
func (c *core) workQueue(name string) topology.Queue {
	arguments := c.app.Queue.Arguments
	if c.queues.order(name).partitions > 0 {
		arguments = maps.Clone(arguments)
		if arguments == nil {
			arguments = amqp091.Table{}
		}
		arguments[queuearg.SingleActiveConsumer] = true
	}
	return topology.Queue{Name: name, Durable: c.app.Queue.Durable, Arguments: arguments}
}

// validTopology returns the topology of a subscription whose work queue does not exist, and what is wrong with it.
func (c *core) validTopology(s app.Subscription) (topology.Topology, error) {
	t := c.topologyOf(s.Queue)
	group := cmp.Or(c.topologyConfig(s.Queue).TierGroup, s.Queue)
	return t, errors.Join(t.Validate(), c.prefix.ValidateExchange(s.Exchange, group))
}

// declareApp declares the app's own topology of a subscription.
func (c *core) declareApp(s app.Subscription, t topology.Topology) error {
	if err := c.app.DeclareTopology(s, maps.Clone(t.WorkQueue.Arguments)); err != nil {
		return refusal.Explain("declare the app's own topology of queue", s.Queue, err)
	}
	return nil
}

// Declare implements app.Declarer. It declares the app's topology and the retry topology, at every call, because the
// connection of watermill-amqp's subscriber is not known. Each work queue is inspected once, over a connection of its
// own: the broker closes a channel with each refusal.
func (c *core) Declare(s app.Subscription) error {
	t, err := c.validTopology(s)
	if err != nil {
		return err
	}
	first := false
	err = c.once.Do(c.closed, 0, deed{"inspect", s.Queue}, time.Time{}, func() error {
		first = true
		return c.dial(s, c.inspect)
	})
	switch {
	case err != nil || first && c.verifyOnly:
		return err
	case c.verifyOnly:
		return t.Verify(s.Channel)
	}
	t, _ = c.existing(s.Queue)
	if err = c.declareApp(s, t); err == nil && !first {
		err = t.DeclareRetry(s.Channel)
	}
	if !refusal.IsCode(err, amqp091.PreconditionFailed) {
		return err
	}
	// The work queue was deleted, and declared anew with other arguments. The broker has closed s.Channel.
	// watermill-amqp's subscriber declares only before it consumes, and consumes also after an error.
	return c.dial(s, func(b workqueue.Broker, s app.Subscription) error {
		if err = c.inspect(b, s); err == nil {
			s.Channel, err = b.Channel()
		}
		if err != nil {
			return err
		}
		t, _ := c.existing(s.Queue)
		return c.declareApp(s, t)
	})
}

// dial calls use with a connection that does not consume.
func (c *core) dial(s app.Subscription, use func(workqueue.Broker, app.Subscription) error) error {
	return workqueue.Dial(c.closed, c.wire(), s.Queue, s.Logger, func(b workqueue.Broker) error { return use(b, s) })
}

// inspect declares a work queue with its retry topology, or verifies them.
func (c *core) inspect(b workqueue.Broker, s app.Subscription) error {
	config, queue := c.topologyConfig(s.Queue), c.workQueue(s.Queue)
	if c.verifyOnly {
		return c.inspector.Check(b, config, queue, s.Logger)
	}
	t, err := c.inspector.Inspect(b, config, queue, s.Logger)
	if err == nil {
		c.remember(s.Queue, t.WorkQueue.Arguments)
		err = c.inspector.DeclareRetry(b, t, t.DeclareRetry)
	}
	return err
}
