package configamqp3

import (
	"cmp"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/edge"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
)

type (
	// BuilderConfig configures NewBuilder. Run go doc github.com/tieredretry/watermill-retry/rabbitmq.BuilderConfig for its
	// fields and methods.
	BuilderConfig = rabbitmq.BuilderConfig[amqp.Config, major]

	// Builder makes what the app's subscriber, its publisher of failures and the middleware need. Run go doc
	// github.com/tieredretry/watermill-retry/rabbitmq.Builder for its methods.
	Builder = rabbitmq.Builder[amqp.Config, major]

	// Connection is what Connect returns. It is the same type as that of package config. Run go doc
	// github.com/tieredretry/watermill-retry/rabbitmq.Connection for its methods.
	Connection = rabbitmq.Connection
)

// NewBuilder returns an error that joins all faults of the configuration. It does not connect.
func NewBuilder(config BuilderConfig) (*Builder, error) { return rabbitmq.NewBuilder(config) }

// DeadLetterSubscriberConfig returns a configuration for amqp.NewSubscriber of v3 that reads dead letters and declares nothing. The
// group is the Group of the handler, or "". Run
// go doc github.com/tieredretry/watermill-retry/rabbitmq.DeadLetterSubscriberConfig for what it needs and refuses.
func DeadLetterSubscriberConfig(app amqp.Config, group string) (amqp.Config, error) {
	return rabbitmq.DeadLetterSubscriberConfig[amqp.Config, major](app, group)
}

// Connect is rabbitmq.Connect for watermill-amqp v3. Run go doc github.com/tieredretry/watermill-retry/rabbitmq.Connect for what
// becomes of each field of the amqp.Config.
func Connect(config BuilderConfig, logger watermill.LoggerAdapter, defaults ...middleware.HandlerOptions) (*Connection, error) {
	return rabbitmq.Connect(config, logger, defaults...)
}

// major implements edge.Major for watermill-amqp v3.
type major struct{}

func (major) Fields(c *amqp.Config) edge.Fields {
	return edge.Fields{
		URI: &c.Connection.AmqpURI, TLS: &c.Connection.TLSConfig, Connection: &c.Connection.AmqpConfig,
		Validate: func() error { return validate(*c) },
		Exchange: &c.Exchange.Arguments, Queue: &c.Queue.Arguments, QueueBind: &c.QueueBind.Arguments, Consume: &c.Consume.Arguments,
		Durable: &c.Queue.Durable, Exclusive: &c.Queue.Exclusive, AutoDelete: &c.Queue.AutoDelete, ConsumeExclusive: &c.Consume.Exclusive,
		NoRequeueOnNack: &c.Consume.NoRequeueOnNack, Transactional: &c.Publish.Transactional,
		Marshaler: marshalerOf(c), QueueName: c.Queue.GenerateName, ExchangeName: c.Exchange.GenerateName,
		CopyReconnect: edge.CopyPointer(&c.Connection.Reconnect), RedeliveredKey: amqp.MetadataRedeliveredKey,
		RoutingKey:    c.Publish.GenerateRoutingKey,
		SetQueueName:  func(generate func(string) string) { c.Queue.GenerateName = generate },
		PrefetchCount: &c.Consume.Qos.PrefetchCount, PrefetchSize: &c.Consume.Qos.PrefetchSize,
		ConsumerTag: &c.Consume.Consumer, NoLocal: &c.Consume.NoLocal, Immediate: &c.Publish.Immediate,
		Reconnect: func() (initial, longest time.Duration) {
			if c.Connection.Reconnect == nil {
				return 0, 0
			}
			return c.Connection.Reconnect.BackoffInitialInterval, c.Connection.Reconnect.BackoffMaxInterval
		},
		DeclareExchange: func(channel *amqp091.Channel, exchange string) error {
			return appBuilder(c).ExchangeDeclare(channel, exchange, *c)
		},
		Subscription: func(channel *amqp091.Channel, topic, queue, exchange string, logger watermill.LoggerAdapter) edge.Subscription {
			return subscription(appBuilder(c), channel, amqp.BuildTopologyParams{
				Topic: topic, QueueName: queue, ExchangeName: exchange, RoutingKey: c.QueueBind.GenerateRoutingKey(topic),
			}, *c, logger)
		},
	}
}

// validate also refuses what v3 itself does not check: its Subscribe calls GenerateRoutingKey, also without an exchange, and
// panics if it is nil.
func validate(c amqp.Config) error {
	err := c.ValidateSubscriber()
	if c.QueueBind.GenerateRoutingKey == nil {
		err = errors.Join(err, errors.New("QueueBind.GenerateRoutingKey is nil: watermill-amqp v3 calls it at every Subscribe; "+
			`it must return the routing key with which a topic's queue is bound to its exchange, "" without an exchange`))
	}
	return err
}

func (major) Install(c *amqp.Config, parts edge.Parts) {
	c.TopologyBuilder = topologyBuilder{TopologyBuilder: appBuilder(c), declare: parts.Declare}
	c.Marshaler, c.Queue.GenerateName, c.Exchange.GenerateName = parts.Marshaler, parts.QueueName, parts.ExchangeName
}

// appBuilder returns the app's own topology builder, or the one of v3.
func marshalerOf(c *amqp.Config) edge.Marshaler {
	if d, ok := c.Marshaler.(amqp.DefaultMarshaler); ok && d.PostprocessPublishing == nil && d.PreprocessDelivery == nil {
		return edge.Plain{Marshaler: d, UUIDKey: cmp.Or(d.MessageUUIDHeaderKey, amqp.DefaultMessageUUIDHeaderKey)}
	}
	return c.Marshaler
}

func appBuilder(c *amqp.Config) amqp.TopologyBuilder {
	return cmp.Or[amqp.TopologyBuilder](c.TopologyBuilder, &amqp.DefaultTopologyBuilder{})
}

// topologyBuilder declares the retry topology too. It passes the params of v3, which has already generated the binding's routing
// key, to the app's own topology builder as they are.
type topologyBuilder struct {
	amqp.TopologyBuilder
	declare func(edge.Subscription) error
}

func (t topologyBuilder) BuildTopology(
	channel *amqp091.Channel, params amqp.BuildTopologyParams, config amqp.Config, logger watermill.LoggerAdapter,
) error {
	return t.declare(subscription(t.TopologyBuilder, channel, params, config, logger))
}

func subscription(
	app amqp.TopologyBuilder, channel *amqp091.Channel, params amqp.BuildTopologyParams, config amqp.Config, logger watermill.LoggerAdapter,
) edge.Subscription {
	return edge.Subscription{
		Channel: channel, Exchange: params.ExchangeName, Logger: logger,
		Queue: params.QueueName, Durable: config.Queue.Durable, Arguments: config.Queue.Arguments,
		DeclareApp: func(channel *amqp091.Channel, arguments amqp091.Table) error {
			config.Queue.Arguments = arguments
			return app.BuildTopology(channel, params, config, logger)
		},
	}
}
