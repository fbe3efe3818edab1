package configamqp3_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/configamqp3"
	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/edge"
)

func TestBuilder(t *testing.T) { configtest.Run(t, configamqp3.NewBuilder, majorOfTests) }

func TestConnect(t *testing.T) { configtest.RunConnect(t, configamqp3.Connect, majorOfTests) }

var majorOfTests = configtest.Major[amqp.Config]{
	Stock: func(change func(amqp091.Publishing) amqp091.Publishing) edge.Marshaler {
		return amqp.DefaultMarshaler{PostprocessPublishing: change}
	},
	PubSub: func(uri, group string) amqp.Config {
		return amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(group))
	},
	DeadLetters:    configamqp3.DeadLetterSubscriberConfig,
	StockPublisher: &amqp.Publisher{},
	DurableQueue:   amqp.NewDurableQueueConfig, NonDurableQueue: amqp.NewNonDurableQueueConfig,
}
