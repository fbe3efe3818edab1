package rabbitmq

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/edge"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/headers"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/refusal"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// core is the part of a Builder that does not depend on the major.
type core struct {
	app        edge.Fields // of a copy that does not change
	topology   topology.Config
	prefix     naming.Prefix
	verifyOnly bool
	inspector  *workqueue.Inspector
	source     *middleware.Source
	warned     atomic.Bool // of a handler without the retry middleware
}

func (c *core) String() string {
	if c == nil {
		return "Builder(none)"
	}
	return fmt.Sprintf("Builder(%s, prefix %s, schedule %v)", redacted(*c.app.URI), c.prefix, c.topology.Schedule)
}

// connection returns the configuration with which watermill-amqp connects.
func (c *core) connection() amqp091.Config {
	if own := cloneConnection(*c.app.Connection); own != nil {
		return *own
	}
	return amqp091.Config{Locale: "en_US", TLSClientConfig: (*c.app.TLS).Clone()}
}

func (c *core) publisherConfig() publisher.Config {
	config := publisher.Config{
		URI:      *c.app.URI,
		AMQP:     cloneConnection(*c.app.Connection),
		TLS:      (*c.app.TLS).Clone(),
		Exchange: c.prefix.RetryExchange(),
		Marshal:  headers.New(c.app.Marshaler, c.prefix).Marshal,
		Headroom: headers.Headroom(c.prefix),
		Shrink:   headers.Shrink,
	}
	if !c.verifyOnly {
		config.Redeclare = c.redeclare
	}
	return config
}

func (c *core) tieredRetryConfig(failures message.Publisher) middleware.TieredRetryConfig {
	return middleware.TieredRetryConfig{
		Publisher:     failures,
		Schedule:      slices.Clone(c.topology.Schedule),
		DeclaredTiers: c.topology.Schedule.Tiers(),
		Source:        c.source,

		GenerateRetryDestination:      c.retryDestination,
		GenerateDeadLetterDestination: c.deadLetterDestination,
	}
}

func (c *core) retryDestination(p middleware.RetryDestinationParams) (middleware.Destination, error) {
	queue := c.app.QueueName(p.Topic)
	return middleware.Destination{Topic: naming.RetryKey(queue, p.Tier), Queue: c.prefix.TierQueue(queue, p.Tier)}, nil
}

func (c *core) deadLetterDestination(p middleware.DeadLetterDestinationParams) (middleware.Destination, error) {
	queue := c.app.QueueName(p.Topic)
	return middleware.Destination{Topic: naming.DeadKey(queue), Queue: naming.DeadQueue(queue)}, nil
}

func (c *core) topologyOf(queue string) topology.Topology {
	return topology.New(c.topology, topology.Queue{Name: queue, Durable: *c.app.Durable, Arguments: *c.app.Queue})
}

// redeclare declares the tiers and the dead-letter queue of a routing key again.
func (c *core) redeclare(channel *amqp091.Channel, routingKey string) error {
	queue, ok := naming.QueueOfKey(routingKey)
	if !ok {
		return fmt.Errorf("routing key %q has no work queue: it must be <tier>.<queue> or dead.<queue>", routingKey)
	}
	return c.topologyOf(queue).Redeclare(channel)
}

// declare declares the app's topology and the retry topology.
func (c *core) declare(s edge.Subscription) error {
	queue := topology.Queue{Name: s.Queue, Durable: s.Durable, Arguments: s.Arguments}
	t := topology.New(c.topology, queue)
	if err := errors.Join(t.Validate(), c.prefix.ValidateExchange(s.Exchange)); err != nil {
		return err
	}
	if c.verifyOnly {
		inspected, err := c.inspector.Verify(queue, t, s.Logger)
		if err != nil || inspected {
			return err
		}
		return t.Verify(s.Channel)
	}
	if s.Fault != nil {
		return s.Fault
	}
	arguments, err := c.inspector.Resolve(queue, t, s.Logger)
	if err != nil {
		return err
	}
	if err := s.DeclareApp(arguments); err != nil {
		c.inspector.Forget(s.Queue)
		return refusal.Explain("declare the app's own topology of queue", s.Queue, err)
	}
	if err := t.DeclareRetry(s.Channel); err != nil {
		c.inspector.Forget(s.Queue)
		return err
	}
	return nil
}

// declareDeadLetters declares the dead-letter queue that s.Queue names and what belongs to it, but not the work queue.
func (c *core) declareDeadLetters(s edge.Subscription) error {
	t := c.topologyOf(naming.WorkQueueOf(s.Queue))
	if err := t.Validate(); err != nil {
		return err
	}
	if c.verifyOnly {
		return t.Verify(s.Channel)
	}
	return t.DeclareDeadLetters(s.Channel)
}
