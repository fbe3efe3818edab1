//go:build amqpv3

package amqp

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

const Major = "v3"

type (
	Config                 = amqp.Config
	DefaultMarshaler       = amqp.DefaultMarshaler
	defaultTopologyBuilder = amqp.DefaultTopologyBuilder
)

var (
	DefaultReconnectConfig               = amqp.DefaultReconnectConfig
	GenerateQueueNameTopicNameWithSuffix = amqp.GenerateQueueNameTopicNameWithSuffix
	NewDurablePubSubConfig               = amqp.NewDurablePubSubConfig
	NewDurableQueueConfig                = amqp.NewDurableQueueConfig
	NewNonDurableQueueConfig             = amqp.NewNonDurableQueueConfig
	NewPublisher                         = amqp.NewPublisher
	NewSubscriber                        = amqp.NewSubscriber
)

func (s *SpyTopologyBuilder) BuildTopology(
	channel *amqp091.Channel, params amqp.BuildTopologyParams, config amqp.Config, logger watermill.LoggerAdapter,
) error {
	if s.Built != nil {
		s.Built <- params.QueueName
	}
	err := s.defaultTopologyBuilder.BuildTopology(channel, params, config, logger)
	if s.After != nil {
		s.After(params.QueueName)
	}
	return err
}
