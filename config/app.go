package config

import (
	"cmp"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
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
		RoutingKey:    c.Publish.GenerateRoutingKey,
		Transactional: c.Publish.Transactional, Immediate: c.Publish.Immediate,
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
	if r := c.Connection.Reconnect; r != nil {
		values.ReconnectInitial, values.ReconnectMax = r.BackoffInitialInterval, r.BackoffMaxInterval
	}
	return values
}

func marshalerOf(c amqp.Config) app.Marshaler {
	if d, ok := c.Marshaler.(amqp.DefaultMarshaler); ok && d.PostprocessPublishing == nil {
		return app.Plain{Marshaler: d, UUIDKey: cmp.Or(d.MessageUUIDHeaderKey, amqp.DefaultMessageUUIDHeaderKey)}
	}
	return c.Marshaler
}

// topologyBuilderOf returns the app's own topology builder, or that of watermill-amqp.
func topologyBuilderOf(c amqp.Config) amqp.TopologyBuilder {
	return cmp.Or[amqp.TopologyBuilder](c.TopologyBuilder, &amqp.DefaultTopologyBuilder{})
}

// declareTopology returns an error where watermill-amqp's own topology builder would panic: it calls GenerateRoutingKey
// if there is an exchange.
func declareTopology(c amqp.Config, s app.Subscription, arguments amqp091.Table) error {
	builder := topologyBuilderOf(c)
	if _, stock := builder.(*amqp.DefaultTopologyBuilder); stock && s.Exchange != "" &&
		c.QueueBind.GenerateRoutingKey == nil {
		return fmt.Errorf("AMQP.QueueBind.GenerateRoutingKey is nil: it must return the routing key with which queue "+
			"%q is bound to exchange %q",
			s.Queue, s.Exchange)
	}
	c.Queue.Arguments = arguments
	return builder.BuildTopology(s.Channel, s.Queue, s.Exchange, c, s.Logger)
}

// topologyBuilder takes the place of the app's own in a configuration for watermill-amqp's subscriber.
type topologyBuilder struct {
	amqp.TopologyBuilder // the app's own
	declarer             app.Declarer
}

func (t topologyBuilder) BuildTopology(
	channel *amqp091.Channel, queue, exchange string, _ amqp.Config, logger watermill.LoggerAdapter,
) error {
	return t.declarer.Declare(app.Subscription{Channel: channel, Queue: queue, Exchange: exchange, Logger: logger})
}
