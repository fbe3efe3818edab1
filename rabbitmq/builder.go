package rabbitmq

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Builder makes what the Builders of packages config and config/amqp3 return. It is safe for concurrent use.
type Builder struct {
	core  *core
	token string // in the metadata of what its subscribers receive, random for each builder

	mu         sync.Mutex
	publishers []message.Publisher // of the middlewares
}

// NewBuilder returns an error that joins all faults of the configuration. It does not connect.
func NewBuilder(config Config) (*Builder, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid Config: %w", err)
	}
	return &Builder{core: newCore(config), token: rand.Text()}, nil
}

// newCore makes the core of a valid configuration.
func newCore(config Config) *core {
	if config.Prefix == "" {
		config.Prefix = string(naming.Default)
	}
	c := &core{
		app: config.App, topology: config.topology(), prefix: naming.Prefix(config.Prefix),
		verifyOnly: config.VerifyOnly,
		policy:     config.Policy.Clone(),
		redeclared: map[string]time.Time{},
	}
	c.inspector = workqueue.New(workqueue.Config{
		URI: c.app.URI, Connection: c.connection,
		Prefix: c.prefix, QueueType: config.QueueType, AllowUnprotectedQuorum: config.AllowUnprotectedQuorum,
		DeadLetters: config.DeadLetters,
	})
	return c
}

// Subscriber is what a configuration for watermill-amqp's subscriber has in place of the app's own parts.
type Subscriber struct {
	app.Marshaler
	app.Declarer
}

// Subscriber returns the parts of one subscriber.
func (b *Builder) Subscriber() Subscriber {
	return Subscriber{headers.NewBuilders(b.core.app.Marshaler, b.core.prefix, b.token), b.core}
}

// NewPublisher returns the publisher of failures, on a connection of its own.
func (b *Builder) NewPublisher(logger watermill.LoggerAdapter) (message.Publisher, error) {
	connection, err := publisher.Open(publisher.Config{Wire: b.core.wire()}, logger)
	if err != nil {
		return nil, err
	}
	return newCopies(b.core, connection), nil
}

// NewTieredRetry returns a retry middleware, with a publisher of its own.
func (b *Builder) NewTieredRetry(
	logger watermill.LoggerAdapter, decorators ...message.PublisherDecorator,
) (*middleware.TieredRetry, error) {
	failures, err := b.NewPublisher(logger)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.publishers = append(b.publishers, failures)
	b.mu.Unlock()
	decorated := failures
	for _, decorate := range decorators {
		if decorated, err = decorate(decorated); err != nil {
			return nil, err
		}
	}
	return middleware.NewTieredRetry(b.TieredRetryConfig(decorated), logger)
}

// Close closes the publishers of the middlewares.
func (b *Builder) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var faults []error
	for _, p := range b.publishers {
		faults = append(faults, p.Close())
	}
	return errors.Join(faults...)
}

// TieredRetryConfig returns the middleware's configuration.
func (b *Builder) TieredRetryConfig(failures message.Publisher) middleware.TieredRetryConfig {
	config := b.core.retryConfig(failures, b.core.policy)
	config.Source = &middleware.Source{
		Token: b.token, Name: "the builder of " + b.core.place(),
		Subscribe: "use the subscriber of amqp.NewSubscriber(builder.SubscriberConfig(), logger)",
	}
	return config
}

// Topology returns what the work queue of a topic needs on the broker.
func (b *Builder) Topology(topic string) topology.Topology {
	return b.core.topologyOf(b.core.app.QueueName(topic))
}

// Format implements fmt.Formatter. It prints address, prefix and schedule, without the password in the address.
func (b *Builder) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, b.core.String()) }
