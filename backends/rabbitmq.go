package backends

import (
	"github.com/ThreeDotsLabs/watermill"
	amqpv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqpv3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/configamqp3"
	"github.com/tieredretry/watermill-retry/internal/edge"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// RabbitMQ is watermill-amqp v2. The broker delays the messages, in queues with a TTL: there is no relay. App.MaxHop, App.Limit and
// App.HandlerLimit have no effect.
func RabbitMQ(uri string, logger watermill.LoggerAdapter) Backend {
	return rabbitMQ("rabbitmq-v2", uri, func(app App) amqpv2.Config {
		c := amqpv2.NewDurablePubSubConfig(uri, amqpv2.GenerateQueueNameTopicNameWithSuffix(app.Group))
		c.Publish.ConfirmDelivery = true
		c.Marshaler = app.marshaler(c.Marshaler)
		return c
	}, config.Connect, config.NewBuilder, amqpv2.NewPublisher, amqpv2.NewSubscriber, logger)
}

// RabbitMQv3 is watermill-amqp v3.
func RabbitMQv3(uri string, logger watermill.LoggerAdapter) Backend {
	return rabbitMQ("rabbitmq-v3", uri, func(app App) amqpv3.Config {
		c := amqpv3.NewDurablePubSubConfig(uri, amqpv3.GenerateQueueNameTopicNameWithSuffix(app.Group))
		c.Publish.ConfirmDelivery = true
		c.Marshaler = app.marshaler(c.Marshaler)
		return c
	}, configamqp3.Connect, configamqp3.NewBuilder, amqpv3.NewPublisher, amqpv3.NewSubscriber, logger)
}

// rabbitMQ is a major version of watermill-amqp, whose configuration, publisher and subscriber are C, P and S.
func rabbitMQ[C any, M edge.Major[C], P message.Publisher, S message.Subscriber](
	name, uri string,
	fanOut func(App) C,
	connect func(rabbitmq.BuilderConfig[C, M], watermill.LoggerAdapter, ...middleware.HandlerOptions) (*rabbitmq.Connection, error),
	newBuilder func(rabbitmq.BuilderConfig[C, M]) (*rabbitmq.Builder[C, M], error),
	newPublisher func(C, watermill.LoggerAdapter) (P, error),
	newSubscriber func(C, watermill.LoggerAdapter) (S, error),
	logger watermill.LoggerAdapter,
) Backend {
	return Backend{
		Name:      name,
		Publisher: func() (message.Publisher, error) { return newPublisher(fanOut(App{}), logger) },
		Letters: func(app App) (*Letters, error) {
			store, err := deadletter.Open(deadletter.Config{URI: uri, Prefix: app.Prefix}, logger)
			return &Letters{Store: store, QueueOf: func(_, topic string) (string, error) {
				return deadletter.QueueOf(amqpv2.GenerateQueueNameTopicNameWithSuffix(app.Group)(topic)), nil
			}}, err
		},
		Connect: func(app App) (*Connection, error) {
			config := rabbitmq.BuilderConfig[C, M]{AMQP: fanOut(app), Schedule: app.Schedule, Prefix: app.Prefix}
			c, err := connect(config, logger, app.onRabbitMQ())
			if err != nil {
				return nil, err
			}
			return &Connection{Connection: c, DeadLetters: func(_, topic string) (message.Subscriber, string, error) {
				rabbit, err := newBuilder(config)
				if err != nil {
					return nil, "", err
				}
				s, err := newSubscriber(rabbit.DeadLetterSubscriberConfig(), logger)
				return s, topic, err
			}}, nil
		},
	}
}

// onRabbitMQ are the options of the app's handlers. The hook of a retry runs after the broker has confirmed the copy, and before the
// message is acknowledged.
func (a App) onRabbitMQ() middleware.HandlerOptions {
	options := a.defaults()
	if a.AfterCopy == nil {
		return options
	}
	options.Middleware = func(c *middleware.TieredRetryConfig) {
		if a.Middleware != nil {
			a.Middleware(c)
		}
		observe := c.Observe
		c.Observe = func(e retry.Event) {
			if e.Outcome == retry.Retried {
				a.AfterCopy("")
			}
			if observe != nil {
				observe(e)
			}
		}
	}
	return options
}

// marshaler adds BeforeCopy to the app's marshaler: a copy is marshaled just before it is published.
func (a App) marshaler(m edge.Marshaler) edge.Marshaler {
	if a.BeforeCopy == nil {
		return m
	}
	return observedMarshaler{m, a}
}

type observedMarshaler struct {
	edge.Marshaler
	app App
}

func (m observedMarshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	m.app.BeforeCopy("")
	return m.Marshaler.Marshal(msg)
}
