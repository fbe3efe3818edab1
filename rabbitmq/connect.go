package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/edge"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/dial"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// Connect opens two connections to the broker, one for consuming and one for publishing, and returns a Connection that uses them for
// all its handlers. It returns an error that joins all faults of the configuration and of the defaults, or the reason why it cannot
// connect. At most one HandlerOptions can be given: it has the defaults of all handlers. Its Schedule replaces that of config, which
// may then be empty. The default of Concurrency is 16. A nil logger logs nothing.
//
// The app's configuration, config.AMQP, is that of watermill-amqp, but the subscriber is the one of package subscriber, and the
// publishers are those of package publisher. These fields differ from what watermill-amqp does with them:
//
//	Connection.Reconnect          only BackoffInitialInterval and BackoffMaxInterval are used; the pause doubles, and is
//	                              shortened at random by up to a half; defaults 100 ms and 5 s
//	Queue.GenerateName            not called for a handler with a Group, and may be nil if each handler has one
//	Publish.GenerateRoutingKey    may be nil if the app does not publish
//	Publish.Mandatory,
//	Publish.ConfirmDelivery       always true: an unroutable or unconfirmed message is an error
//	Publish.Immediate             refused: RabbitMQ does not have it
//	Publish.ChannelPoolSize       not used: all messages share one channel
//	Consume.Consumer              the consumer tag of every handler; each has an AMQP channel of its own
//	Consume.NoWait                not used: the broker's answer is always waited for
//	Consume.Qos.PrefetchCount     used where it is more than a handler's Concurrency, otherwise the prefetch is the Concurrency;
//	                              with an OrderKey, 16 times the Concurrency
//	Consume.Qos.PrefetchSize      refused: RabbitMQ does not have it
//	Consume.Qos.Global            not used: each handler has an AMQP channel of its own, so it would change nothing
//
// A message of Connection.Publisher without a delivery mode is persistent: for others, the marshaler sets amqp091.Transient.
func Connect[C any, M edge.Major[C]](
	config BuilderConfig[C, M], logger watermill.LoggerAdapter, defaults ...middleware.HandlerOptions,
) (*Connection, error) {
	var faults []error
	options, err := optionsOf(defaults, middleware.HandlerOptions{})
	if err != nil {
		faults = append(faults, fmt.Errorf("invalid HandlerOptions: %w", err))
	}
	if len(config.Schedule) == 0 && len(options.Schedule) > 0 {
		if config.Schedule = options.Schedule; options.Schedule.Validate() != nil {
			config.Schedule = backoff.Constant(time.Second, 1) // the fault is reported above
		}
	}
	if err := config.validateConnect(); err != nil {
		faults = append(faults, fmt.Errorf("invalid BuilderConfig: %w", err))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	if len(options.Schedule) > 0 {
		config.Schedule = options.Schedule
	}
	_, c := newCore(config)
	c.queues, c.observers = &queues{}, &middleware.Observers{}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return open(c, options, config.Management, logger)
}

// validateConnect is Validate for Connect.
func (c BuilderConfig[C, M]) validateConnect() error {
	var major M
	app := major.Fields(&c.AMQP)
	if app.QueueName == nil { // a handler with a Group does not need it
		app.SetQueueName(func(topic string) string { return topic })
	}
	return errors.Join(c.Validate(), validateConsumer(app))
}

// validateConsumer reports settings that only Connect refuses.
func validateConsumer(app edge.Fields) error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("AMQP."+format, args...)) }

	if validateURI(*app.URI) == nil {
		for _, err := range (dial.Config{URI: *app.URI, AMQP: *app.Connection, TLS: *app.TLS}).Faults() {
			fault("Connection: %w", err)
		}
	}
	initial, longest := app.Reconnect()
	for _, err := range dial.Durations([]dial.Field{
		{Name: "BackoffInitialInterval", Value: initial}, {Name: "BackoffMaxInterval", Value: longest},
	}) {
		fault("Connection.Reconnect.%w", err)
	}
	if longest > 0 && initial > longest {
		fault("Connection.Reconnect.BackoffInitialInterval: %s, at most BackoffMaxInterval, %s", initial, longest)
	}
	if *app.Immediate {
		fault("Publish.Immediate is true: RabbitMQ closes the connection of a publisher that sets it")
	}
	if size := *app.PrefetchSize; size != 0 {
		fault("Consume.Qos.PrefetchSize is %d: RabbitMQ closes the connection of a consumer that sets it; set Concurrency", size)
	}
	if count := *app.PrefetchCount; count < 0 || count > maxPrefetch {
		fault("Consume.Qos.PrefetchCount is %d: it must be between 0 and %d", count, maxPrefetch)
	}
	consumer := subscriber.Config{Consumer: subscriber.ConsumerConfig{Tag: *app.ConsumerTag, Arguments: *app.Consume}}
	if err := consumer.Validate(); err != nil {
		fault("Consume: %w", err)
	}
	return errors.Join(faults...)
}

const (
	defaultConcurrency = 16
	maxPrefetch        = 1<<16 - 1 // basic.qos sends it in two bytes
)

// optionsOf is middleware.OneOf, and reports the faults of the changes of Middleware too.
func optionsOf(given []middleware.HandlerOptions, defaults middleware.HandlerOptions) (middleware.HandlerOptions, error) {
	options, err := middleware.OneOf(given, defaults)
	faults := []error{err}
	for _, o := range given {
		faults = append(faults, validateMiddleware(o))
	}
	return options, errors.Join(faults...)
}

// validateMiddleware reports the faults of the changes of Middleware.
func validateMiddleware(options middleware.HandlerOptions) error {
	if options.Middleware != nil {
		valid := middleware.TieredRetryConfig{
			Publisher:                     struct{ message.Publisher }{},
			Schedule:                      []time.Duration{time.Second},
			GenerateRetryDestination:      func(middleware.RetryDestinationParams) (d retry.Destination, err error) { return },
			GenerateDeadLetterDestination: func(middleware.DeadLetterDestinationParams) (d retry.Destination, err error) { return },
		}
		changes := middleware.HandlerOptions{Middleware: options.Middleware}
		if err := changes.Configure(valid).Validate(); err != nil {
			return fmt.Errorf("Middleware: %w", err)
		}
	}
	return nil
}

// open connects twice. manage is the address of the management API, or empty.
func open(c *core, defaults middleware.HandlerOptions, manage string, logger watermill.LoggerAdapter) (*Connection, error) {
	initial, longest := c.app.Reconnect()
	consuming, err := subscriber.Open(subscriber.ConnectionConfig{
		URI: *c.app.URI, AMQP: cloneConnection(*c.app.Connection), TLS: (*c.app.TLS).Clone(),
		ReconnectInitial: initial, ReconnectMax: longest,
	}, logger)
	if err != nil {
		return nil, fmt.Errorf("cannot open the connection for consuming: %w", err)
	}
	config := c.publisherConnection()
	config.ReconnectInitial, config.ReconnectMax = initial, longest
	publishing, err := publisher.Open(config, logger)
	if err != nil {
		_ = consuming.Close()
		return nil, fmt.Errorf("cannot open the connection for publishing: %w", err)
	}
	connection := &Connection{core: c, defaults: defaults, logger: logger, consuming: consuming, publishing: publishing}
	connection.stopping, connection.stop = context.WithCancel(context.Background())
	connection.declarer = newDeclarer(declarerConfig{
		Inspector: c.inspector, Prefix: c.prefix, VerifyOnly: c.verifyOnly, Logger: logger,
		Publishing: publishing.Channel, Consumed: connection.consumed,
	})
	if err := errors.Join(connection.setUp(), connection.watch(manage)); err != nil {
		_ = connection.Close()
		return nil, err
	}
	return connection, nil
}
