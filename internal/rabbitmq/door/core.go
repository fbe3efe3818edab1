package door

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"strconv"
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
	closed     context.Context // of a Builder: ends with its Close
	observers  *backend.Observers

	redeclaring chan struct{}        // has a value while tiers of a group are declared again
	redeclared  map[string]time.Time // when each tier of a group was declared again
}

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

// groupOf returns the group of tiers of a work queue, or the work queue itself.
func (c *core) groupOf(queue string) string {
	if group, _, found := c.queues.of(queue); found {
		return cmp.Or(group, queue)
	}
	return cmp.Or(c.topology.TierGroup, queue)
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

// existing returns the topology of a work queue that exists with these arguments.
func (c *core) existing(queue string, arguments amqp091.Table) topology.Topology {
	return workqueue.Existing(c.topologyConfig(queue), c.workQueue(queue), arguments)
}

func (c *core) topologyOf(queue string) topology.Topology {
	return topology.New(c.topologyConfig(queue), c.workQueue(queue))
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

// redeclare declares the tiers and the dead-letter queue of a copy's work queue again.
func (c *core) redeclare(channel *amqp091.Channel, to place) error {
	t := c.topologyOf(to.work)
	if arguments, known := c.inspector.Known(to.work); known {
		t = c.existing(to.work, arguments)
	}
	if to.group == to.work || to.tier == 0 {
		return t.Redeclare(channel)
	}
	// Copies of all work queues of the group fail at the same moment: the first one declares the tiers again for all.
	asked := time.Now()
	c.redeclaring <- struct{}{}
	defer func() { <-c.redeclaring }()
	if c.redeclared[to.queue].After(asked) {
		return nil
	}
	began := time.Now()
	err := t.Redeclare(channel)
	if err == nil {
		for _, queue := range t.Queues {
			c.redeclared[queue.Name] = began
		}
	}
	return err
}

// Declare implements app.Declarer. It declares the app's topology and the retry topology.
func (c *core) Declare(s app.Subscription) error {
	queue, config := c.workQueue(s.Queue), c.topologyConfig(s.Queue)
	t := topology.New(config, queue)
	if err := errors.Join(t.Validate(), c.prefix.ValidateExchange(s.Exchange, c.groupOf(s.Queue))); err != nil {
		return err
	}
	if c.verifyOnly {
		inspected, err := c.inspector.Verify(c.closed, config, queue, s.Logger)
		if err != nil || inspected {
			return err
		}
		return t.Verify(s.Channel)
	}
	arguments, declared, err := c.inspector.Resolve(c.closed, config, queue, s.Logger)
	if err != nil {
		return err
	}
	if err = c.app.DeclareTopology(s, arguments); err != nil {
		err = refusal.Explain("declare the app's own topology of queue", s.Queue, err)
	} else if !declared {
		err = c.existing(s.Queue, arguments).DeclareRetry(s.Channel)
	}
	if err == nil {
		return nil
	}
	c.inspector.Forget(s.Queue)
	if !refusal.IsCode(err, amqp091.PreconditionFailed) {
		return err
	}
	return c.declareAgain(s)
}

// declareAgain inspects a work queue that was deleted and declared anew with other arguments. The broker has closed
// s.Channel. watermill-amqp's subscriber declares only before it consumes, and consumes also after an error.
func (c *core) declareAgain(s app.Subscription) error {
	arguments, _, err := c.inspector.Resolve(c.closed, c.topologyConfig(s.Queue), c.workQueue(s.Queue), s.Logger)
	if err != nil {
		return err
	}
	return c.inspector.Dial(c.closed, s.Queue, s.Logger, func(b workqueue.Broker) error {
		channel, err := b.Channel()
		if err == nil {
			s.Channel = channel
			err = c.app.DeclareTopology(s, arguments)
		}
		if err != nil {
			c.inspector.Forget(s.Queue)
			return refusal.Explain("declare the app's own topology of queue", s.Queue, err)
		}
		return nil
	})
}
