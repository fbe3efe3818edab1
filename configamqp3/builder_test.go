package configamqp3_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/configamqp3"
	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/edge"
)

func TestBuilder(t *testing.T) {
	queueOf := amqp.GenerateQueueNameTopicNameWithSuffix
	configtest.Run(t, configamqp3.NewBuilder, configtest.Major[amqp.Config]{
		DurableQueue: amqp.NewDurableQueueConfig, NonDurableQueue: amqp.NewNonDurableQueueConfig,
		PubSub:      func(uri, group string) amqp.Config { return amqp.NewDurablePubSubConfig(uri, queueOf(group)) },
		DeadLetters: configamqp3.DeadLetterSubscriberConfig,
		Stock: func(change func(amqp091.Publishing) amqp091.Publishing) edge.Marshaler {
			return amqp.DefaultMarshaler{PostprocessPublishing: change}
		},
	})
}
