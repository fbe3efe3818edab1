package door

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/tieredretry/watermill-retry/internal/options"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// Builder makes what the Builders of packages config and config/amqp3 return. It is safe for concurrent use.
type Builder struct {
	core  *core
	token string // in the metadata of what its subscribers receive, random for each builder

	close context.CancelCauseFunc // ends core.closed

	mu          sync.Mutex
	connections []*publisher.Connection // the connections of the middlewares
	logger      watermill.LoggerAdapter // the logger of the last middleware; nil: there is none
	unattached  []retry.Observer        // the observers that wait until there is a middleware
}

// NewBuilder returns an error that joins all faults of the configuration. It does not connect.
func NewBuilder(config Config) (*Builder, error) {
	if err := config.Validate(); err != nil {
		return nil, faults.Of("invalid Config", err)
	}
	b := &Builder{core: newCore(config), token: rand.Text()}
	b.core.closed, b.close = context.WithCancelCause(context.Background())
	return b, nil
}

// newCore makes the core of a valid configuration.
func newCore(config Config) *core {
	if config.Prefix == "" {
		config.Prefix = string(naming.Default)
	}
	c := &core{
		app: config.App, topology: config.topology(), prefix: naming.Prefix(config.Prefix),
		verifyOnly: config.VerifyOnly, policy: options.Clone(config.Policy),
		observers: &backend.Observers{},
	}
	c.inspector = workqueue.New(workqueue.Config{
		Vhost: c.address().Vhost, Prefix: c.prefix, QueueType: config.QueueType,
		AllowUnprotectedQuorum: config.AllowUnprotectedQuorum,
		DeadLetters:            config.DeadLetters,
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

// NewTieredRetry returns a retry middleware, with a connection of its own for the copies.
func (b *Builder) NewTieredRetry(logger watermill.LoggerAdapter) (message.HandlerMiddleware, error) {
	connection, err := publisher.Open(publisher.Config{Wire: b.core.wire()}, logger)
	if err != nil {
		return nil, err
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	b.mu.Lock()
	b.connections = append(b.connections, connection)
	b.logger = logger
	b.mu.Unlock()
	b.attach()
	own := handlerBackend{newCopies(b.core, connection), b.core.policy.TierGroup, b.source()}
	tiered, err := middleware.New(b.core.policy, own, logger)
	if err != nil {
		return nil, err
	}
	return tiered.Middleware, nil
}

// source is where the messages of the builder's middlewares come from.
func (b *Builder) source() *backend.Source {
	return &backend.Source{
		Token: b.token, QueueName: b.core.app.QueueName, Name: "the builder of " + b.core.broker(),
		Subscribe: "use the subscriber of amqp.NewSubscriber(builder.SubscriberConfig(), logger)",
	}
}

// Observe attaches observers to all middlewares of the builder, with the logger of one of them.
func (b *Builder) Observe(observers ...retry.Observer) {
	b.mu.Lock()
	b.unattached = append(b.unattached, observers...)
	b.mu.Unlock()
	b.attach()
}

func (b *Builder) attach() {
	b.mu.Lock()
	logger, observers := b.logger, b.unattached
	if logger != nil {
		b.unattached = nil
	}
	b.mu.Unlock()
	if logger == nil { // there is no middleware yet
		return
	}
	for _, o := range observers {
		b.core.observers.Attach(o, backend.Observed{
			System: "rabbitmq", Health: b.health, Logger: logger, Closed: b.core.closed.Done(),
		})
	}
}

// health is the state of the connections for copies. The subscribers are watermill-amqp's.
func (b *Builder) health() (h retry.Health) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.connections {
		h.Links = append(h.Links, c.Health())
	}
	return h
}

var errClosed = errors.New("the builder is closed")

// Close closes the connections of the middlewares, and ends the declarations of subscribers that begin.
func (b *Builder) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close(errClosed)
	var faults []error
	for _, c := range b.connections {
		faults = append(faults, c.Close())
	}
	return errors.Join(faults...)
}

// Topology returns what the work queue of a topic needs on the broker.
func (b *Builder) Topology(topic string) topology.Topology {
	return b.core.topologyOf(b.core.app.QueueName(topic))
}

// Format implements fmt.Formatter. It prints address, prefix and schedule, without the password in the address.
func (b *Builder) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, b.core.String()) }
