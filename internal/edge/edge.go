// Package edge is what package rabbitmq and the packages for one major version of watermill-amqp, config and configamqp3, need of
// each other. It is internal because an app does not implement it.
package edge

import (
	"crypto/tls"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Major adapts a rabbitmq.Builder to one major version of watermill-amqp, whose amqp.Config is C. The zero value must be usable.
type Major[C any] interface {
	// Fields gives access to config.
	Fields(config *C) Fields

	// Install puts parts into config. The app's own topology builder is then called only by Subscription.DeclareApp.
	Install(config *C, parts Parts)
}

// Marshaler is the Marshaler interface of watermill-amqp, which is the same in all its majors.
type Marshaler interface {
	Marshal(msg *message.Message) (amqp091.Publishing, error)
	Unmarshal(delivery amqp091.Delivery) (*message.Message, error)
}

// Plain is the DefaultMarshaler of watermill-amqp without functions of the app: each metadata key is a header, and the UUID is one.
// Package headers then makes messages and copies without calling it, which saves copies of the headers.
type Plain struct {
	Marshaler
	UUIDKey string // the header of the UUID
}

// Fields give access to the fields of an amqp.Config that a Builder reads or copies.
type Fields struct {
	URI        *string          // Connection.AmqpURI
	TLS        **tls.Config     // Connection.TLSConfig
	Connection **amqp091.Config // Connection.AmqpConfig

	Exchange, Queue, QueueBind, Consume *amqp091.Table // the Arguments of each

	Durable, Exclusive, AutoDelete *bool // of Queue
	ConsumeExclusive               *bool
	NoRequeueOnNack, NoLocal       *bool   // of Consume
	ConsumerTag                    *string // Consume.Consumer
	PrefetchCount, PrefetchSize    *int    // of Consume.Qos
	Transactional, Immediate       *bool   // of Publish

	// The types of these fields belong to the major.
	Marshaler               Marshaler
	QueueName, ExchangeName func(topic string) string
	SetQueueName            func(func(topic string) string)
	RoutingKey              func(topic string) string // Publish.GenerateRoutingKey, may be nil
	CopyReconnect           func()                    // replaces Connection.Reconnect by a copy
	Reconnect               func() (initial, longest time.Duration)

	// RedeliveredKey is the metadata key with which the major marks a message that the broker delivers again, or "".
	RedeliveredKey string

	// DeclareExchange calls the app's own topology builder.
	DeclareExchange func(channel *amqp091.Channel, exchange string) error

	// Subscription is what Parts.Declare gets, for a subscriber that is not the one of watermill-amqp. Its
	// DeclareApp uses the app's own topology builder.
	Subscription func(channel *amqp091.Channel, topic, queue, exchange string, logger watermill.LoggerAdapter) Subscription

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
	Exchange string
	Logger   watermill.LoggerAdapter

	Queue     string
	Durable   bool          // of the app's configuration, for Queue
	Arguments amqp091.Table // of the app's configuration, for Queue

	// Fault is an error that the app's own topology builder would panic on, or nil.
	Fault error
	// DeclareApp calls the app's own topology builder, with a channel and these arguments of the queue.
	DeclareApp func(channel *amqp091.Channel, arguments amqp091.Table) error
}
