// Package app has what the library needs of an app's configuration for watermill-amqp, in the types of no major
// version. Packages config and config/amqp3 fill it.
package app

import (
	"crypto/tls"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Config has the values of an amqp.Config. Its tables and pointers belong to the library.
type Config struct {
	URI                            string
	TLS                            *tls.Config
	Connection                     *amqp091.Config
	ReconnectInitial, ReconnectMax time.Duration

	Marshaler Marshaler
	Queue     Queue
	Consume   Consume

	Transactional, Immediate bool // the flags of Publish

	// QueueName, ExchangeName and RoutingKey are the app's names for a topic. RoutingKey is that of Publish, and may be
	// nil.
	QueueName, ExchangeName, RoutingKey func(topic string) string

	// RedeliveredKey is the metadata key with which the major marks a message that the broker delivers again, or empty.
	RedeliveredKey string

	// Fault is what only the major refuses, or nil.
	Fault error

	// DeclareExchange declares an exchange as the app's topology builder does.
	DeclareExchange func(channel *amqp091.Channel, exchange string) error

	// DeclareTopology declares the app's own topology of a subscription, with these arguments of the queue.
	DeclareTopology func(s Subscription, arguments amqp091.Table) error
}

// Queue has the values of Config.Queue of watermill-amqp, except its name.
type Queue struct {
	Durable, Exclusive, AutoDelete bool
	Arguments                      amqp091.Table
}

// Consume has the values of Config.Consume of watermill-amqp.
type Consume struct {
	Tag                                 string
	Exclusive, NoLocal, NoRequeueOnNack bool
	PrefetchCount, PrefetchSize         int
	Arguments                           amqp091.Table
}

// Marshaler is the Marshaler interface of watermill-amqp, which is the same in all its majors.
type Marshaler interface {
	Marshal(msg *message.Message) (amqp091.Publishing, error)
	Unmarshal(delivery amqp091.Delivery) (*message.Message, error)
}

// Plain is the DefaultMarshaler of watermill-amqp without functions of the app: each metadata key is a header, and the
// UUID is one. Package headers then makes messages and copies without calling it, which saves copies of the headers.
type Plain struct {
	Marshaler
	UUIDKey string // the header of the UUID
}

// Subscription is one Subscribe or reconnect.
type Subscription struct {
	Channel  *amqp091.Channel
	Topic    string // empty where watermill-amqp v2 subscribes, which gives its topology builder no topic
	Queue    string
	Exchange string
	Logger   watermill.LoggerAdapter
}

// Declarer declares what a subscription needs, in place of the app's topology builder.
type Declarer interface {
	Declare(s Subscription) error
}

// Copy replaces pointers by pointers to copies: a connection writes into its configuration, and a declaration into its
// arguments.
func Copy(settings **tls.Config, connection **amqp091.Config, arguments ...*amqp091.Table) {
	*settings = (*settings).Clone()
	*connection = CopyConnection(*connection)
	for _, table := range arguments {
		*table = maps.Clone(*table)
	}
}

// CopyConnection also copies Properties and TLSClientConfig, which amqp091-go writes into.
func CopyConnection(c *amqp091.Config) *amqp091.Config {
	if c == nil {
		return nil
	}
	connection := *c
	connection.Properties = maps.Clone(connection.Properties)
	connection.TLSClientConfig = connection.TLSClientConfig.Clone()
	connection.SASL = slices.Clone(connection.SASL)
	return &connection
}
