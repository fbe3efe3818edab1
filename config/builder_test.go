package config_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/edge"
)

func TestBuilder(t *testing.T) { configtest.Run(t, config.NewBuilder, majorOfTests) }

func TestConnect(t *testing.T) { configtest.RunConnect(t, config.Connect, majorOfTests) }

var majorOfTests = configtest.Major[amqp.Config]{
	DurableQueue: amqp.NewDurableQueueConfig, NonDurableQueue: amqp.NewNonDurableQueueConfig,
	PubSub: func(uri, group string) amqp.Config {
		return amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(group))
	},
	DeadLetters:    config.DeadLetterSubscriberConfig,
	StockPublisher: &amqp.Publisher{},
	Stock: func(change func(amqp091.Publishing) amqp091.Publishing) edge.Marshaler {
		return amqp.DefaultMarshaler{PostprocessPublishing: change}
	},
}
