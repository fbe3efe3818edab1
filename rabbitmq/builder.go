package rabbitmq

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/edge"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Builder makes, around the app's own configuration, what its subscriber, its publisher of failures and the middleware need. It
// is safe for concurrent use.
type Builder[C any, M edge.Major[C]] struct {
	// Both are pointers, so that a struct that holds a builder does not print the password.
	app  *C
	core *core
}

// NewBuilder returns an error that joins all faults of the configuration. It does not connect.
func NewBuilder[C any, M edge.Major[C]](config BuilderConfig[C, M]) (*Builder[C, M], error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid BuilderConfig: %w", err)
	}
	app, c := newCore(config)
	c.source = c.newSource(c, "the builder of "+c.place(), "use the subscriber of amqp.NewSubscriber(builder.SubscriberConfig(), logger)", c.tieredRetryConfig(nil))
	return &Builder[C, M]{app: app, core: c}, nil
}

// newCore copies a valid configuration.
func newCore[C any, M edge.Major[C]](config BuilderConfig[C, M]) (*C, *core) {
	if config.Prefix == "" {
		config.Prefix = string(naming.Default)
	}
	config.Schedule = slices.Clone(config.Schedule)
	app := clone[C, M](config.AMQP)
	var major M
	c := &core{
		app: major.Fields(&app), topology: config.topology(), prefix: naming.Prefix(config.Prefix), verifyOnly: config.VerifyOnly,
		redeclared: map[string]time.Time{},
		schedule:   config.Schedule, rules: slices.Clone(config.Rules), jitter: config.Jitter, extra: slices.Clone(config.ExtraTiers),
	}
	c.inspector = workqueue.New(workqueue.Config{
		URI: *c.app.URI, Connection: c.connection,
		Prefix: c.prefix, QueueType: config.QueueType, AllowUnprotectedQuorum: config.AllowUnprotectedQuorum, DeadLetters: config.DeadLetters,
	})
	return &app, c
}

// SubscriberConfig returns the app's configuration for amqp.NewSubscriber, with two changes. Its topology builder declares the
// retry topology beside the app's own at every Subscribe and reconnect. Its marshaler wraps the app's, and also reads messages
// that come back from a tier. Every call returns a new copy.
//
// Add the retry middleware to every handler of that subscriber. Without it, a handler also gets messages that the app's marshaler
// cannot read, with the metadata key retry.UnmarshalErrorKey, and messages keep the metadata key retry.PropertiesKey. A
// message that it nacks is delivered again after a pause: 10 ms, doubled for each further delivery, at most 1 s. The builder warns
// of that once.
//
// The retry middleware refuses messages of other subscribers: see middleware.TieredRetryConfig.Source.
//
// The subscriber's logger gets the builder's warnings, each once: through its method Warn(string, watermill.LogFields) if it has
// one, otherwise through Info.
func (b *Builder[C, M]) SubscriberConfig() C {
	c := &consuming{core: b.core}
	return with[C, M](*b.app, edge.Parts{
		Marshaler: headers.NewConsuming(c.app.Marshaler, c.prefix, c.source, c.warnUnclaimed),
		QueueName: c.app.QueueName, ExchangeName: c.app.ExchangeName,
		Declare: c.declare,
	})
}

// DeadLetterSubscriberConfig is the function DeadLetterSubscriberConfig for the builder's own AMQP configuration. Every call
// returns a new copy.
func (b *Builder[C, M]) DeadLetterSubscriberConfig() C { return readDeadLetters[C, M](*b.app, "") }

// NewPublisher returns the publisher of failures, on a connection of its own. Publish returns nil only after the broker has
// routed and confirmed the message. It declares a deleted tier or dead-letter queue again, unless VerifyOnly is set. Close it
// after the router has closed. A nil logger logs nothing.
func (b *Builder[C, M]) NewPublisher(logger watermill.LoggerAdapter) (*publisher.Publisher, error) {
	return publisher.New(b.core.publisherConnection(), b.core.publisherConfig(), logger)
}

// TieredRetryConfig returns the middleware's configuration: the publisher, the schedule, and the destinations of copies on this
// broker. Set Observe and limits on the result.
//
// Use only Builder.NewPublisher, or a publisher that wraps it. With watermill-amqp's own publisher the copies go to no queue, and
// every failed message is lost without an error: NewTieredRetry refuses it. Where another type wraps or embeds watermill-amqp's
// publisher, that cannot be seen, and is not refused.
func (b *Builder[C, M]) TieredRetryConfig(failures message.Publisher) middleware.TieredRetryConfig {
	return b.core.tieredRetryConfig(failures)
}

// Topology returns what the work queue of a topic needs on the broker. The app's own exchange and its binding are not part of
// it.
func (b *Builder[C, M]) Topology(topic string) topology.Topology {
	return b.core.topologyOf(b.core.app.QueueName(topic))
}

// Format implements fmt.Formatter. It prints address, prefix and schedule, without the password in the address.
func (b Builder[C, M]) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, b.core.String()) }
