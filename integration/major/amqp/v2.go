//go:build !amqpv3

// Package amqp is watermill-amqp in the major that the tests are built for.
package amqp

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Major is which it is.
const Major = "v2"

type (
	Config           = amqp.Config
	DefaultMarshaler = amqp.DefaultMarshaler
	PublishConfig    = amqp.PublishConfig
)

const DefaultMessageUUIDHeaderKey = amqp.DefaultMessageUUIDHeaderKey

var (
	DefaultReconnectConfig               = amqp.DefaultReconnectConfig
	GenerateQueueNameConstant            = amqp.GenerateQueueNameConstant
	GenerateQueueNameTopicNameWithSuffix = amqp.GenerateQueueNameTopicNameWithSuffix
	NewDurablePubSubConfig               = amqp.NewDurablePubSubConfig
	NewDurableQueueConfig                = amqp.NewDurableQueueConfig
	NewNonDurableQueueConfig             = amqp.NewNonDurableQueueConfig
	NewPublisher                         = amqp.NewPublisher
	NewSubscriber                        = amqp.NewSubscriber
)

// SpyTopologyBuilder is an app's own topology builder: the default one, which tells of every queue that it builds.
type SpyTopologyBuilder struct {
	amqp.DefaultTopologyBuilder
	Built chan string
}

func (s *SpyTopologyBuilder) BuildTopology(
	channel *amqp091.Channel, queue, exchange string, config amqp.Config, logger watermill.LoggerAdapter,
) error {
	s.Built <- queue
	return s.DefaultTopologyBuilder.BuildTopology(channel, queue, exchange, config, logger)
}
