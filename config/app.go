package config

import (
	"fmt"
	"maps"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// clone copies all that a connection or a declaration could write into.
func clone(c amqp.Config) amqp.Config {
	c.Connection.TLSConfig = c.Connection.TLSConfig.Clone()
	c.Connection.AmqpConfig = rabbitmq.CloneConnection(c.Connection.AmqpConfig)
	if c.Connection.Reconnect != nil {
		reconnect := *c.Connection.Reconnect
		c.Connection.Reconnect = &reconnect
	}
	c.Exchange.Arguments = maps.Clone(c.Exchange.Arguments)
	c.Queue.Arguments = maps.Clone(c.Queue.Arguments)
	c.QueueBind.Arguments = maps.Clone(c.QueueBind.Arguments)
	c.Consume.Arguments = maps.Clone(c.Consume.Arguments)
	return c
}

// appOf is what the shared builder needs to know. It keeps what it is given.
func appOf(c amqp.Config) rabbitmq.App {
	return rabbitmq.App{
		URI:             c.Connection.AmqpURI,
		TLS:             c.Connection.TLSConfig,
		Connection:      c.Connection.AmqpConfig,
		Marshaler:       c.Marshaler,
		QueueOf:         c.Queue.GenerateName,
		Queue:           topology.Queue{Durable: c.Queue.Durable, Arguments: c.Queue.Arguments},
		Exclusive:       c.Queue.Exclusive,
		AutoDelete:      c.Queue.AutoDelete,
		NoRequeueOnNack: c.Consume.NoRequeueOnNack,
		Transactional:   c.Publish.Transactional,
		Fault:           c.ValidateSubscriber(),
	}
}

// topologyBuilder declares the app's topology and ours at every Subscribe and reconnect.
type topologyBuilder struct {
	app    amqp.TopologyBuilder
	shared *rabbitmq.Builder
}

// BuildTopology implements watermill-amqp's TopologyBuilder.
func (t topologyBuilder) BuildTopology(
	channel *amqp091.Channel, queue, exchange string, config amqp.Config, logger watermill.LoggerAdapter,
) error {
	return t.shared.BuildTopology(rabbitmq.Subscription{
		Channel:  channel,
		Queue:    topology.Queue{Name: queue, Durable: config.Queue.Durable, Arguments: config.Queue.Arguments},
		Exchange: exchange,
		Logger:   logger,
		Fault:    t.fault(queue, exchange, config),
		BuildApp: func(arguments amqp091.Table) error {
			config.Queue.Arguments = arguments
			return t.app.BuildTopology(channel, queue, exchange, config, logger)
		},
	})
}

// fault: watermill-amqp's own builder calls GenerateRoutingKey, nil or not, where there is an exchange.
func (t topologyBuilder) fault(queue, exchange string, config amqp.Config) error {
	if _, stock := t.app.(*amqp.DefaultTopologyBuilder); stock && exchange != "" && config.QueueBind.GenerateRoutingKey == nil {
		return fmt.Errorf("AMQP.QueueBind.GenerateRoutingKey is nil: it must say with which key queue %q is bound to exchange %q", queue, exchange)
	}
	return nil
}

// ExchangeDeclare implements watermill-amqp's TopologyBuilder, for a publisher.
func (t topologyBuilder) ExchangeDeclare(channel *amqp091.Channel, exchange string, config amqp.Config) error {
	return t.app.ExchangeDeclare(channel, exchange, config)
}

// deadLetterTopology declares a dead-letter queue where the app would declare its own.
type deadLetterTopology struct{ shared *rabbitmq.Builder }

func (t deadLetterTopology) BuildTopology(channel *amqp091.Channel, dead, _ string, _ amqp.Config, _ watermill.LoggerAdapter) error {
	return t.shared.DeclareDeadLetters(channel, dead)
}

func (t deadLetterTopology) ExchangeDeclare(*amqp091.Channel, string, amqp.Config) error { return nil }
