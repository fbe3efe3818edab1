// Package door is what package config opens for both majors of watermill-amqp: the Connection, and the builder.
package door

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/ordered"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/retry"
)

// Connect opens two connections. Packages config and config/amqp3 document it.
func Connect(config Config, logger watermill.LoggerAdapter) (retry.Connection, error) {
	if err := config.validateConnect(); err != nil {
		return nil, faults.Of("invalid Config", err)
	}
	c := newCore(config)
	c.queues = &queues{}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return open(c, config.Management, logger)
}

// validateConnect is Validate for Connect.
func (c Config) validateConnect() error {
	if c.App.QueueName == nil { // a handler with a Group does not need it
		c.App.QueueName = func(topic string) string { return topic }
	}
	return errors.Join(c.Validate(), validateConsumer(c.App))
}

// validateConsumer reports settings that only Connect refuses.
func validateConsumer(c app.Config) error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("AMQP."+format, args...)) }

	if validateURI(c.URI) == nil {
		for _, err := range (wire.Config{URI: c.URI, AMQP: c.Connection, TLS: c.TLS}).Faults() {
			fault("Connection: %w", err)
		}
	}
	initial, longest := c.ReconnectInitial, c.ReconnectMax
	for _, err := range wire.Durations([]wire.Field{
		{Name: "BackoffInitialInterval", Value: initial}, {Name: "BackoffMaxInterval", Value: longest},
	}) {
		fault("Connection.Reconnect.%w", err)
	}
	if longest > 0 && initial > longest {
		fault("Connection.Reconnect.BackoffInitialInterval: %s, at most BackoffMaxInterval, %s", initial, longest)
	}
	if c.Immediate {
		fault("Publish.Immediate is true: RabbitMQ closes the connection of a publisher that sets it")
	}
	if size := c.Consume.PrefetchSize; size != 0 {
		fault("Consume.Qos.PrefetchSize is %d: RabbitMQ closes the connection of a consumer that sets it; set "+
			"Concurrency", size)
	}
	if count := c.Consume.PrefetchCount; count < 0 || count > maxPrefetch {
		fault("Consume.Qos.PrefetchCount is %d: it must be between 0 and %d", count, maxPrefetch)
	}
	if n := len(c.Consume.Tag); n > channel.MaxShortString {
		fault("Consume.Consumer has %d bytes: it must have at most %d", n, channel.MaxShortString)
	}
	if err := c.Consume.Arguments.Validate(); err != nil {
		fault("Consume.Arguments: %w", err)
	}
	return errors.Join(faults...)
}

const (
	defaultConcurrency = 16
	maxPrefetch        = 1<<16 - 1 // basic.qos sends it in two bytes
)

// open connects twice. manage is the address of the management API, or empty.
func open(c *core, manage string, logger watermill.LoggerAdapter) (retry.Connection, error) {
	to := c.wire()
	to.ReconnectInitial, to.ReconnectMax = c.app.ReconnectInitial, c.app.ReconnectMax
	consuming, err := ordered.Open(to, logger)
	if err != nil {
		return nil, fmt.Errorf("cannot open the connection for consuming: %w", err)
	}
	publishing, err := publisher.Open(publisher.Config{Wire: to}, logger)
	if err != nil {
		_ = consuming.Close()
		return nil, fmt.Errorf("cannot open the connection for publishing: %w", err)
	}
	connection := &Connection{core: c, logger: logger, consuming: consuming, publishing: publishing}
	connection.stopping, connection.stop = context.WithCancel(context.Background())
	connection.declarer = newDeclarer(c, consuming, publishing, logger)
	if err := errors.Join(connection.setUp(), connection.watch(manage)); err != nil {
		_ = connection.Close()
		return nil, err
	}
	return connection, nil
}
