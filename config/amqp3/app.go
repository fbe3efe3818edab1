package amqp3

import (
	"cmp"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
)

// clone copies everything that a connection or a declaration could write into.
func clone(c amqp.Config) amqp.Config {
	app.Copy(&c.Connection.TLSConfig, &c.Connection.AmqpConfig,
		&c.Exchange.Arguments, &c.Queue.Arguments, &c.QueueBind.Arguments, &c.Consume.Arguments)
	if c.Connection.Reconnect != nil {
		reconnect := *c.Connection.Reconnect
		c.Connection.Reconnect = &reconnect
	}
	return c
}

// appOf returns the values of a configuration, and the functions of its topology builder.
func appOf(c amqp.Config) app.Config {
	c = clone(c)
	values := app.Config{
		URI: c.Connection.AmqpURI, TLS: c.Connection.TLSConfig, Connection: c.Connection.AmqpConfig,
		Marshaler: marshalerOf(c),
		QueueName: c.Queue.GenerateName, ExchangeName: c.Exchange.GenerateName,
		RoutingKey:     c.Publish.GenerateRoutingKey,
		RedeliveredKey: amqp.MetadataRedeliveredKey,
		Transactional:  c.Publish.Transactional, Immediate: c.Publish.Immediate,
		Queue: app.Queue{
			Durable: c.Queue.Durable, Exclusive: c.Queue.Exclusive, AutoDelete: c.Queue.AutoDelete,
			Arguments: c.Queue.Arguments,
		},
		Consume: app.Consume{
			Tag: c.Consume.Consumer, Exclusive: c.Consume.Exclusive, NoLocal: c.Consume.NoLocal,
			NoRequeueOnNack: c.Consume.NoRequeueOnNack, Arguments: c.Consume.Arguments,
			PrefetchCount: c.Consume.Qos.PrefetchCount, PrefetchSize: c.Consume.Qos.PrefetchSize,
		},
		DeclareExchange: func(channel *amqp091.Channel, exchange string) error {
			return topologyBuilderOf(c).ExchangeDeclare(channel, exchange, c)
		},
		DeclareTopology: func(s app.Subscription, arguments amqp091.Table) error {
			return declareTopology(c, s, arguments)
		},
	}
	if c.QueueBind.GenerateRoutingKey == nil { // v3 itself does not check it
		values.Fault = errors.New("AMQP: QueueBind.GenerateRoutingKey is nil: watermill-amqp v3 calls it at every " +
			"Subscribe; " +
			`it must return the routing key with which a topic's queue is bound to its exchange, ` +
			`"" without an exchange`)
	}
	if r := c.Connection.Reconnect; r != nil {
		values.ReconnectInitial, values.ReconnectMax = r.BackoffInitialInterval, r.BackoffMaxInterval
	}
	return values
}

func marshalerOf(c amqp.Config) app.Marshaler {
	if d, ok := c.Marshaler.(amqp.DefaultMarshaler); ok && d.PostprocessPublishing == nil &&
		d.PreprocessDelivery == nil {
		return app.Plain{Marshaler: d, UUIDKey: cmp.Or(d.MessageUUIDHeaderKey, amqp.DefaultMessageUUIDHeaderKey)}
	}
	return c.Marshaler
}

// topologyBuilderOf returns the app's own topology builder, or that of watermill-amqp.
func topologyBuilderOf(c amqp.Config) amqp.TopologyBuilder {
	return cmp.Or[amqp.TopologyBuilder](c.TopologyBuilder, &amqp.DefaultTopologyBuilder{})
}

func declareTopology(c amqp.Config, s app.Subscription, arguments amqp091.Table) error {
	c.Queue.Arguments = arguments
	return topologyBuilderOf(c).BuildTopology(s.Channel, amqp.BuildTopologyParams{
		Topic: s.Topic, QueueName: s.Queue, ExchangeName: s.Exchange,
		RoutingKey: c.QueueBind.GenerateRoutingKey(s.Topic),
	}, c, s.Logger)
}

// topologyBuilder takes the place of the app's own in a configuration for watermill-amqp's subscriber.
type topologyBuilder struct {
	amqp.TopologyBuilder // the app's own
	declarer             app.Declarer
}

func (t topologyBuilder) BuildTopology(
	channel *amqp091.Channel, params amqp.BuildTopologyParams, _ amqp.Config, logger watermill.LoggerAdapter,
) error {
	return t.declarer.Declare(app.Subscription{
		Channel: channel, Topic: params.Topic, Queue: params.QueueName, Exchange: params.ExchangeName, Logger: logger,
	})
}
