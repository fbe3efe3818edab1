package door

import (
	"errors"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// validateNames reports everything that is missing in the app's configuration, and what only its major refuses.
func validateNames(c app.Config) error {
	faults := []error{validateURI(c.URI)}
	missing := func(field, fix string) { faults = append(faults, fmt.Errorf("AMQP.%s is nil: %s", field, fix)) }
	if c.Marshaler == nil {
		missing("Marshaler", "set the app's marshaler, for example amqp.DefaultMarshaler{}")
	}
	if c.ExchangeName == nil {
		missing("Exchange.GenerateName",
			`set a function that returns the name of a topic's exchange, "" without an exchange`)
	}
	if c.QueueName == nil {
		missing("Queue.GenerateName", "set a function that returns the name of a topic's queue")
	}
	return errors.Join(append(faults, c.Fault)...)
}

// validateApp reports settings that every major refuses.
func validateApp(c app.Config, mode topology.WorkQueueMode) error {
	var faults []error
	refuse := func(field, why string) { faults = append(faults, fmt.Errorf("AMQP.%s: %s", field, why)) }

	if c.Consume.NoRequeueOnNack {
		refuse("Consume.NoRequeueOnNack is true", "a nacked message would be dropped, and a shutdown nacks the "+
			"message in flight; "+
			"the middleware nacks only what must be redelivered")
	}
	if c.Transactional {
		refuse("Publish.Transactional is true", "failures are published with confirms, which a transactional channel "+
			"does not have")
	}
	if c.Queue.Exclusive {
		refuse("Queue.Exclusive is true", "the queue is deleted with its connection, and messages on a tier could "+
			"not come back to it")
	}
	if c.Queue.AutoDelete {
		refuse("Queue.AutoDelete is true", "the queue is deleted with its last consumer, and messages on a tier "+
			"could not come back to it")
	}
	if c.Queue.Arguments[queuearg.QueueType] == amqp091.QueueTypeStream {
		refuse("Queue.Arguments[x-queue-type] is stream", "a message of a stream cannot be retried, because it stays "+
			"in the stream")
	}
	if mode != topology.Leave && !c.Queue.Durable {
		refuse("Queue.Durable is false", "a queue that is lost when the broker restarts cannot be protected; "+
			"set Durable, or WorkQueueMode: topology.Leave")
	}
	return errors.Join(faults...)
}

// validateURI returns no error of a parser, which could contain the password.
func validateURI(uri string) error {
	if uri == "" {
		return errors.New("AMQP.Connection.AmqpURI is empty: set the broker's address, " +
			"amqp://user:password@host:5672/vhost")
	}
	if _, err := wire.ParseURI(uri); err != nil {
		return errors.New("AMQP.Connection.AmqpURI cannot be read: it must be like " +
			"amqp://user:password@host:5672/vhost (or amqps://), " +
			"with reserved characters in user name and password percent-encoded")
	}
	return nil
}
