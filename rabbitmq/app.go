package rabbitmq

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/url"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Marshaler is watermill-amqp's, the same in all its majors.
type Marshaler interface {
	Marshal(msg *message.Message) (amqp091.Publishing, error)
	Unmarshal(delivery amqp091.Delivery) (*message.Message, error)
}

// App is what the builder needs to know of an app's watermill-amqp configuration. It belongs to the builder: the packages for
// the majors make it from a deep copy.
type App struct {
	URI        string
	TLS        *tls.Config
	Connection *amqp091.Config

	Marshaler Marshaler
	QueueOf   func(topic string) string
	Queue     topology.Queue // without a name

	Exclusive, AutoDelete          bool
	NoRequeueOnNack, Transactional bool

	// Fault is what the major itself says of the configuration, nil where it is content.
	Fault error
}

func (a App) validate(mode topology.WorkQueueMode) error {
	var faults []error
	refuse := func(field, why string) { faults = append(faults, fmt.Errorf("AMQP.%s: %s", field, why)) }

	if a.NoRequeueOnNack {
		refuse("Consume.NoRequeueOnNack is true", "a shutdown nacks the message in flight, which is then dropped; the middleware nacks only what must come back")
	}
	if a.Transactional {
		refuse("Publish.Transactional is true", "failures are published with confirms, which a transactional channel cannot have")
	}
	if a.Exclusive {
		refuse("Queue.Exclusive is true", "the queue is gone with its connection, and what waits on a tier could not come back")
	}
	if a.AutoDelete {
		refuse("Queue.AutoDelete is true", "the queue is gone with its last consumer, and what waits on a tier could not come back")
	}
	if kind := a.Queue.Arguments[argType]; kind == amqp091.QueueTypeStream {
		refuse("Queue.Arguments[x-queue-type] is stream", "a stream cannot give a message back to be retried")
	}
	if mode != topology.Leave && !a.Queue.Durable {
		refuse("Queue.Durable is false", "a queue that does not survive the broker's restart cannot be protected; set it, or WorkQueueMode: Leave")
	}
	return errors.Join(faults...)
}

// validateURI leaves the reading to the publisher, which never prints the address: it holds the password.
func validateURI(uri string) error {
	if uri == "" {
		return errors.New("AMQP.Connection.AmqpURI is empty: give the broker's address, amqp://user:password@host:5672/vhost")
	}
	if (publisher.Config{URI: uri}).Validate() != nil {
		return errors.New("AMQP.Connection.AmqpURI cannot be read: it must be like amqp://user:password@host:5672/vhost (or amqps://), " +
			"with reserved characters in user name and password percent-encoded")
	}
	return nil
}

// Redacted is an address to be printed, without its password.
func Redacted(uri string) string {
	if uri == "" {
		return ""
	}
	address, err := url.Parse(uri)
	if err != nil || validateURI(uri) != nil {
		return "(an address that cannot be read)"
	}
	return address.Redacted()
}

// vhost is the virtual host that a connection opens: amqp091-go prefers its configuration's.
func (a App) vhost() string {
	if a.Connection != nil && a.Connection.Vhost != "" {
		return a.Connection.Vhost
	}
	uri, err := amqp091.ParseURI(a.URI)
	if err != nil {
		return ""
	}
	return uri.Vhost
}

// CloneConnection copies all that a connection could write into: amqp091-go itself writes into Properties and
// TLSClientConfig.
func CloneConnection(c *amqp091.Config) *amqp091.Config {
	if c == nil {
		return nil
	}
	connection := *c
	connection.Properties = maps.Clone(connection.Properties)
	connection.TLSClientConfig = connection.TLSClientConfig.Clone()
	connection.SASL = append([]amqp091.Authentication(nil), connection.SASL...)
	return &connection
}
