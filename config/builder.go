package config

import (
	"cmp"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/edge"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
)

// BuilderConfig configures NewBuilder. Its fields and methods:
//
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.BuilderConfig
type BuilderConfig = rabbitmq.BuilderConfig[amqp.Config, major]

// Builder makes what the app's subscriber, its publisher of failures and the middleware need. Its methods:
//
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.Builder
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.Builder.NewPublisher
type Builder = rabbitmq.Builder[amqp.Config, major]

// NewBuilder returns an error that joins all faults of the configuration. It does not connect.
func NewBuilder(config BuilderConfig) (*Builder, error) { return rabbitmq.NewBuilder(config) }

// DeadLetterSubscriberConfig returns a configuration for amqp.NewSubscriber that reads dead letters. It needs only the app's own
// configuration and the Group of the handler ("" where it has none), no builder and no schedule, and declares nothing. In full:
//
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.DeadLetterSubscriberConfig
func DeadLetterSubscriberConfig(app amqp.Config, group string) (amqp.Config, error) {
	return rabbitmq.DeadLetterSubscriberConfig[amqp.Config, major](app, group)
}

// Connection has the handlers, the middleware and the publisher of an app. Its methods:
//
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.Connection
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.Connection.AddConsumerHandler
type Connection = rabbitmq.Connection

// Connect opens two connections to the broker and returns a Connection for all handlers of an app. At most one HandlerOptions can be
// given: the defaults of all handlers. It returns an error that joins all faults, or the reason why it cannot connect. A nil logger
// logs nothing. What becomes of each field of the amqp.Config:
//
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.Connect
func Connect(config BuilderConfig, logger watermill.LoggerAdapter, defaults ...middleware.HandlerOptions) (*Connection, error) {
	return rabbitmq.Connect(config, logger, defaults...)
}

// major implements edge.Major for watermill-amqp v2.
type major struct{}

func (major) Fields(c *amqp.Config) edge.Fields {
	f := edge.Fields{
		URI: &c.Connection.AmqpURI, TLS: &c.Connection.TLSConfig, Connection: &c.Connection.AmqpConfig,
		Validate: c.ValidateSubscriber,
		Exchange: &c.Exchange.Arguments, Queue: &c.Queue.Arguments, QueueBind: &c.QueueBind.Arguments, Consume: &c.Consume.Arguments,
		Durable: &c.Queue.Durable, Exclusive: &c.Queue.Exclusive, AutoDelete: &c.Queue.AutoDelete, ConsumeExclusive: &c.Consume.Exclusive,
		NoRequeueOnNack: &c.Consume.NoRequeueOnNack, Transactional: &c.Publish.Transactional,
		Marshaler: marshalerOf(c), QueueName: c.Queue.GenerateName, ExchangeName: c.Exchange.GenerateName,
		CopyReconnect: edge.CopyPointer(&c.Connection.Reconnect),
		RoutingKey:    c.Publish.GenerateRoutingKey, SetQueueName: func(f func(string) string) { c.Queue.GenerateName = f },
		ConsumerTag: &c.Consume.Consumer, NoLocal: &c.Consume.NoLocal, Immediate: &c.Publish.Immediate,
		PrefetchCount: &c.Consume.Qos.PrefetchCount, PrefetchSize: &c.Consume.Qos.PrefetchSize,
	}
	f.Reconnect = func() (initial, longest time.Duration) {
		if r := c.Connection.Reconnect; r != nil {
			initial, longest = r.BackoffInitialInterval, r.BackoffMaxInterval
		}
		return initial, longest
	}
	f.DeclareExchange = func(channel *amqp091.Channel, exchange string) error {
		return ownBuilder(c).ExchangeDeclare(channel, exchange, *c)
	}
	f.Subscription = func(channel *amqp091.Channel, topic, queue, exchange string, logger watermill.LoggerAdapter) edge.Subscription {
		return topologyBuilder{TopologyBuilder: ownBuilder(c)}.subscription(channel, queue, exchange, *c, logger)
	}
	return f
}

func marshalerOf(c *amqp.Config) edge.Marshaler {
	if d, ok := c.Marshaler.(amqp.DefaultMarshaler); ok && d.PostprocessPublishing == nil {
		return edge.Plain{Marshaler: d, UUIDKey: cmp.Or(d.MessageUUIDHeaderKey, amqp.DefaultMessageUUIDHeaderKey)}
	}
	return c.Marshaler
}

func ownBuilder(c *amqp.Config) amqp.TopologyBuilder {
	return cmp.Or[amqp.TopologyBuilder](c.TopologyBuilder, &amqp.DefaultTopologyBuilder{})
}

func (major) Install(c *amqp.Config, parts edge.Parts) {
	c.TopologyBuilder = topologyBuilder{TopologyBuilder: ownBuilder(c), declare: parts.Declare}
	c.Marshaler, c.Queue.GenerateName, c.Exchange.GenerateName = parts.Marshaler, parts.QueueName, parts.ExchangeName
}

// topologyBuilder is the app's own, except that it declares the retry topology too.
type topologyBuilder struct {
	amqp.TopologyBuilder
	declare func(edge.Subscription) error
}

func (t topologyBuilder) BuildTopology(
	channel *amqp091.Channel, queue, exchange string, config amqp.Config, logger watermill.LoggerAdapter,
) error {
	return t.declare(t.subscription(channel, queue, exchange, config, logger))
}

func (t topologyBuilder) subscription(
	channel *amqp091.Channel, queue, exchange string, config amqp.Config, logger watermill.LoggerAdapter,
) edge.Subscription {
	return edge.Subscription{
		Channel: channel, Exchange: exchange, Logger: logger,
		Queue: queue, Durable: config.Queue.Durable, Arguments: config.Queue.Arguments,
		Fault: t.fault(queue, exchange, config),
		DeclareApp: func(channel *amqp091.Channel, arguments amqp091.Table) error {
			config.Queue.Arguments = arguments
			return t.TopologyBuilder.BuildTopology(channel, queue, exchange, config, logger)
		},
	}
}

// fault: v2's own topology builder calls GenerateRoutingKey if there is an exchange, and panics if it is nil.
func (t topologyBuilder) fault(queue, exchange string, config amqp.Config) error {
	if _, stock := t.TopologyBuilder.(*amqp.DefaultTopologyBuilder); stock && exchange != "" && config.QueueBind.GenerateRoutingKey == nil {
		return fmt.Errorf("AMQP.QueueBind.GenerateRoutingKey is nil: it must return the routing key with which queue %q is bound to exchange %q",
			queue, exchange)
	}
	return nil
}
