package config

import (
	"cmp"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/edge"
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
// configuration, no builder and no schedule, and declares nothing. In full:
//
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.DeadLetterSubscriberConfig
func DeadLetterSubscriberConfig(app amqp.Config) (amqp.Config, error) {
	return rabbitmq.DeadLetterSubscriberConfig[amqp.Config, major](app)
}

// major implements edge.Major for watermill-amqp v2.
type major struct{}

func (major) Fields(c *amqp.Config) edge.Fields {
	return edge.Fields{
		URI: &c.Connection.AmqpURI, TLS: &c.Connection.TLSConfig, Connection: &c.Connection.AmqpConfig,
		Validate: c.ValidateSubscriber,
		Exchange: &c.Exchange.Arguments, Queue: &c.Queue.Arguments, QueueBind: &c.QueueBind.Arguments, Consume: &c.Consume.Arguments,
		Durable: &c.Queue.Durable, Exclusive: &c.Queue.Exclusive, AutoDelete: &c.Queue.AutoDelete, ConsumeExclusive: &c.Consume.Exclusive,
		NoRequeueOnNack: &c.Consume.NoRequeueOnNack, Transactional: &c.Publish.Transactional,
		Marshaler: c.Marshaler, QueueName: c.Queue.GenerateName, ExchangeName: c.Exchange.GenerateName,
		CopyReconnect: edge.CopyPointer(&c.Connection.Reconnect),
	}
}

func (major) Install(c *amqp.Config, parts edge.Parts) {
	own := cmp.Or[amqp.TopologyBuilder](c.TopologyBuilder, &amqp.DefaultTopologyBuilder{})
	c.TopologyBuilder = topologyBuilder{TopologyBuilder: own, declare: parts.Declare}
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
	return t.declare(edge.Subscription{
		Channel: channel, Exchange: exchange, Logger: logger,
		Queue: queue, Durable: config.Queue.Durable, Arguments: config.Queue.Arguments,
		Fault: t.fault(queue, exchange, config),
		DeclareApp: func(arguments amqp091.Table) error {
			config.Queue.Arguments = arguments
			return t.TopologyBuilder.BuildTopology(channel, queue, exchange, config, logger)
		},
	})
}

// fault: v2's own topology builder calls GenerateRoutingKey if there is an exchange, and panics if it is nil.
func (t topologyBuilder) fault(queue, exchange string, config amqp.Config) error {
	if _, stock := t.TopologyBuilder.(*amqp.DefaultTopologyBuilder); stock && exchange != "" && config.QueueBind.GenerateRoutingKey == nil {
		return fmt.Errorf("AMQP.QueueBind.GenerateRoutingKey is nil: it must return the routing key with which queue %q is bound to exchange %q",
			queue, exchange)
	}
	return nil
}
