package rabbitmq

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/edge"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/argument"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// validateMajor reports everything that is missing in the app's configuration, and what only its major refuses.
func validateMajor[C any, M edge.Major[C]](config C) error {
	var major M
	app := major.Fields(&config)
	faults := []error{validateURI(*app.URI)}
	missing := func(field, fix string) { faults = append(faults, fmt.Errorf("AMQP.%s is nil: %s", field, fix)) }
	if app.Marshaler == nil {
		missing("Marshaler", "set the app's marshaler, for example amqp.DefaultMarshaler{}")
	}
	if app.ExchangeName == nil {
		missing("Exchange.GenerateName", `set a function that returns the name of a topic's exchange, "" without an exchange`)
	}
	if app.QueueName == nil {
		missing("Queue.GenerateName", "set a function that returns the name of a topic's queue")
	}

	// The major must not report the same again.
	*app.URI = "amqp://localhost"
	name := func(string) string { return "" }
	major.Install(&config, edge.Parts{Marshaler: headers.NewDeadLetters(app.Marshaler), QueueName: name, ExchangeName: name})
	if err := major.Fields(&config).Validate(); err != nil {
		faults = append(faults, fmt.Errorf("AMQP: %w", err))
	}
	return errors.Join(faults...)
}

// validateApp reports settings that every major refuses.
func validateApp(app edge.Fields, mode topology.WorkQueueMode) error {
	var faults []error
	refuse := func(field, why string) { faults = append(faults, fmt.Errorf("AMQP.%s: %s", field, why)) }

	if *app.NoRequeueOnNack {
		refuse("Consume.NoRequeueOnNack is true", "a nacked message would be dropped, and a shutdown nacks the message in flight; the middleware nacks only what must be redelivered")
	}
	if *app.Transactional {
		refuse("Publish.Transactional is true", "failures are published with confirms, which a transactional channel does not have")
	}
	if *app.Exclusive {
		refuse("Queue.Exclusive is true", "the queue is deleted with its connection, and messages on a tier could not come back to it")
	}
	if *app.AutoDelete {
		refuse("Queue.AutoDelete is true", "the queue is deleted with its last consumer, and messages on a tier could not come back to it")
	}
	if (*app.Queue)[argument.QueueType] == amqp091.QueueTypeStream {
		refuse("Queue.Arguments[x-queue-type] is stream", "a message of a stream cannot be retried, because it stays in the stream")
	}
	if mode != topology.Leave && !*app.Durable {
		refuse("Queue.Durable is false", "a queue that is lost when the broker restarts cannot be protected; set Durable, or WorkQueueMode: topology.Leave")
	}
	return errors.Join(faults...)
}

// validateURI returns no error of a parser, which could contain the password.
func validateURI(uri string) error {
	if uri == "" {
		return errors.New("AMQP.Connection.AmqpURI is empty: set the broker's address, amqp://user:password@host:5672/vhost")
	}
	if (publisher.ConnectionConfig{URI: uri}).Validate() != nil {
		return errors.New("AMQP.Connection.AmqpURI cannot be read: it must be like amqp://user:password@host:5672/vhost (or amqps://), " +
			"with reserved characters in user name and password percent-encoded")
	}
	return nil
}

// redacted returns an address without its password.
func redacted(uri string) string {
	if uri == "" {
		return ""
	}
	address, err := url.Parse(uri)
	if err != nil || validateURI(uri) != nil {
		return "(an address that cannot be read)"
	}
	return address.Redacted()
}

// clone copies everything that a connection or a declaration could write into.
func clone[C any, M edge.Major[C]](config C) C {
	var major M
	app := major.Fields(&config)
	app.CopyReconnect()
	*app.TLS = (*app.TLS).Clone()
	*app.Connection = cloneConnection(*app.Connection)
	for _, arguments := range []*amqp091.Table{app.Exchange, app.Queue, app.QueueBind, app.Consume} {
		*arguments = maps.Clone(*arguments)
	}
	return config
}

// with returns a copy of a configuration with other parts.
func with[C any, M edge.Major[C]](app C, parts edge.Parts) C {
	config := clone[C, M](app)
	var major M
	major.Install(&config, parts)
	return config
}

// cloneConnection also copies Properties and TLSClientConfig, which amqp091-go writes into.
func cloneConnection(c *amqp091.Config) *amqp091.Config {
	if c == nil {
		return nil
	}
	connection := *c
	connection.Properties = maps.Clone(connection.Properties)
	connection.TLSClientConfig = connection.TLSClientConfig.Clone()
	connection.SASL = slices.Clone(connection.SASL)
	return &connection
}
