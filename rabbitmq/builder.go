// Package rabbitmq is all that the builders for the majors of watermill-amqp have in common: it imports none of them. The
// packages config and configv3 are thin adapters over it.
package rabbitmq

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Config is a BuilderConfig without its major.
type Config struct {
	App App
	topology.Config
	AllowUnprotectedQuorum bool
	VerifyOnly             bool
}

// Validate reports all faults of the configuration, joined. It does not ask the broker.
func (c Config) Validate() error {
	var faults []error
	if err := validateURI(c.App.URI); err != nil {
		faults = append(faults, err)
	} else if c.App.Fault != nil {
		faults = append(faults, fmt.Errorf("AMQP: %w", c.App.Fault))
	}
	return errors.Join(append(faults, c.Config.Validate(), c.App.validate(c.WorkQueueMode))...)
}

// Builder makes, around the app's own configuration, what its subscriber, its failure publisher and the middleware need.
type Builder struct {
	config Config
	work   *workQueues
}

// New checks the configuration, all faults at once.
func New(config Config) (*Builder, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid BuilderConfig: %w", err)
	}
	if config.Prefix == "" {
		config.Prefix = string(naming.Default)
	}
	config.Schedule = append(backoff.Schedule(nil), config.Schedule...)
	b := &Builder{config: config}
	b.work = &workQueues{dial: b.dial, config: config, queues: map[string]*workQueue{}, warned: map[string]bool{}}
	return b, nil
}

// String leaves the password out.
func (b *Builder) String() string {
	if b == nil {
		return "Builder(none)"
	}
	return fmt.Sprintf("Builder(%s, prefix %s, schedule %v)", Redacted(b.config.App.URI), b.config.Prefix, b.config.Schedule)
}

// Marshaler reads what comes back from a tier, and writes copies.
func (b *Builder) Marshaler() Marshaler { return b.marshaler() }

func (b *Builder) marshaler() marshaler {
	return marshaler{app: b.config.App.Marshaler, prefix: naming.Prefix(b.config.Prefix)}
}

// NewPublisher connects the publisher of failures.
func (b *Builder) NewPublisher(logger watermill.LoggerAdapter) (*publisher.Publisher, error) {
	config := publisher.Config{
		URI:      b.config.App.URI,
		AMQP:     CloneConnection(b.config.App.Connection),
		TLS:      b.config.App.TLS.Clone(),
		Exchange: naming.Prefix(b.config.Prefix).RetryExchange(),
		Marshal:  b.marshaler().Marshal,
		Headroom: headroom(naming.Prefix(b.config.Prefix)),
		Shrink:   shrink,
	}
	if !b.config.VerifyOnly {
		config.Redeclare = b.redeclare
	}
	return publisher.New(config, logger)
}

// TieredRetryConfig is the middleware's configuration.
func (b *Builder) TieredRetryConfig(failures message.Publisher) middleware.TieredRetryConfig {
	queueOf, prefix := b.config.App.QueueOf, naming.Prefix(b.config.Prefix)
	return middleware.TieredRetryConfig{
		Publisher: failures,
		Schedule:  append(backoff.Schedule(nil), b.config.Schedule...),
		GenerateRetryDestination: func(p middleware.RetryDestinationParams) (middleware.Destination, error) {
			queue := queueOf(p.Topic)
			return middleware.Destination{Topic: naming.RetryKey(queue, p.Tier), Queue: prefix.TierQueue(queue, p.Tier)}, nil
		},
		GenerateDeadLetterDestination: func(p middleware.DeadLetterDestinationParams) (middleware.Destination, error) {
			queue := queueOf(p.Topic)
			return middleware.Destination{Topic: naming.DeadKey(queue), Queue: naming.DeadQueue(queue)}, nil
		},
	}
}

// Topology is what a topic's work queue needs on the broker.
func (b *Builder) Topology(topic string) topology.Topology {
	return b.topologyOf(b.config.App.QueueOf(topic))
}

func (b *Builder) topologyOf(queue string) topology.Topology {
	work := b.config.App.Queue
	work.Name = queue
	return topology.New(b.config.Config, work)
}

func (b *Builder) redeclare(channel *amqp091.Channel, routingKey string) error {
	queue, ok := naming.QueueOfKey(routingKey)
	if !ok {
		return fmt.Errorf("routing key %q names no work queue: it must be <tier>.<queue> or dead.<queue>", routingKey)
	}
	return b.topologyOf(queue).Redeclare(channel)
}
