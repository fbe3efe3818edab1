package config_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/rabbitmq"
)

type testConfig = configtest.Config[amqp.Config]

func TestBuilder(t *testing.T) {
	configtest.Run(t, configtest.Major[amqp.Config]{
		DurableQueue:    amqp.NewDurableQueueConfig,
		NonDurableQueue: amqp.NewNonDurableQueueConfig,
		PubSub: func(uri, group string) amqp.Config {
			return amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(group))
		},
		WithReconnect: func(c amqp.Config) amqp.Config {
			c.Connection.Reconnect = amqp.DefaultReconnectConfig()
			return c
		},
		Fields: fields,
		Stock: func(postprocess func(amqp091.Publishing) amqp091.Publishing) rabbitmq.Marshaler {
			return amqp.DefaultMarshaler{PostprocessPublishing: postprocess}
		},
		Validate: func(c testConfig) error { return config.BuilderConfig(c).Validate() },
		New: func(c testConfig) (configtest.Builder[amqp.Config], error) {
			return config.NewBuilder(config.BuilderConfig(c))
		},
		Printed: func(c testConfig) []any {
			own := config.BuilderConfig(c)
			printed := []any{own, &own, []config.BuilderConfig{own}, struct{ Own *config.BuilderConfig }{&own}}
			if b, err := config.NewBuilder(own); err == nil {
				printed = append(printed, b, *b, []*config.Builder{b}, struct{ b *config.Builder }{b})
			}
			return printed
		},
	})
}

func fields(c *amqp.Config) configtest.Fields {
	f := configtest.Fields{
		URI: &c.Connection.AmqpURI, TLS: &c.Connection.TLSConfig, Connection: &c.Connection.AmqpConfig,
		Queue: &c.Queue.Arguments, Exchange: &c.Exchange.Arguments, QueueBind: &c.QueueBind.Arguments, Consume: &c.Consume.Arguments,
		Durable: &c.Queue.Durable, Exclusive: &c.Queue.Exclusive, AutoDelete: &c.Queue.AutoDelete,
		NoRequeueOnNack: &c.Consume.NoRequeueOnNack, Transactional: &c.Publish.Transactional, ConsumeExclusive: &c.Consume.Exclusive,
		Marshaler: c.Marshaler, SetMarshaler: func(m rabbitmq.Marshaler) { c.Marshaler = m },
		QueueName: c.Queue.GenerateName, ExchangeName: c.Exchange.GenerateName,
	}
	if c.Connection.Reconnect != nil {
		f.Reconnect = &c.Connection.Reconnect.BackoffMaxInterval
	}
	return f
}
