package rabbitmq

import (
	"crypto/tls"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/headers"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Major adapts a Builder to one major version of watermill-amqp, whose amqp.Config is C. The zero value must be usable. Apps do
// not implement it: the packages config and configamqp3 do.
type Major[C any] interface {
	// Fields gives access to config.
	Fields(config *C) Fields

	// Install puts parts into config. The app's own topology builder is then called only by Subscription.DeclareApp.
	Install(config *C, parts Parts)
}

// Marshaler is the Marshaler interface of watermill-amqp, which is the same in all its majors.
type Marshaler = headers.Marshaler

// Fields give access to the fields of an amqp.Config that a Builder reads or copies.
type Fields struct {
	URI        *string          // Connection.AmqpURI
	TLS        **tls.Config     // Connection.TLSConfig
	Connection **amqp091.Config // Connection.AmqpConfig

	Exchange, Queue, QueueBind, Consume *amqp091.Table // the Arguments of each

	Durable, Exclusive, AutoDelete *bool // of Queue
	ConsumeExclusive               *bool
	NoRequeueOnNack                *bool // of Consume
	Transactional                  *bool // of Publish

	// The types of these fields belong to the major.
	Marshaler               Marshaler
	QueueName, ExchangeName func(topic string) string
	CopyReconnect           func() // replaces Connection.Reconnect by a copy

	// Validate reports what this major refuses in a subscriber's configuration.
	Validate func() error
}

// CopyPointer returns a function that replaces a pointer by one to a copy, unless it is nil. Use it for Fields.CopyReconnect.
func CopyPointer[T any](pointer **T) func() {
	return func() {
		if *pointer != nil {
			value := **pointer
			*pointer = &value
		}
	}
}

// Parts are what a Builder puts into a copy of the app's configuration.
type Parts struct {
	Marshaler               Marshaler
	QueueName, ExchangeName func(topic string) string

	// Declare is called at every Subscribe and reconnect, in place of the topology builder's BuildTopology.
	Declare func(Subscription) error
}

// Subscription is one Subscribe or reconnect: the parameters of BuildTopology.
type Subscription struct {
	Channel  *amqp091.Channel
	Queue    topology.Queue // with the arguments of the app's configuration
	Exchange string
	Logger   watermill.LoggerAdapter

	// Fault is an error that the app's own topology builder would panic on, or nil.
	Fault error
	// DeclareApp calls the app's own topology builder, with these arguments of the queue.
	DeclareApp func(arguments amqp091.Table) error
}
