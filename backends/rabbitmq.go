package backends

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	amqpv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqpv3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/configamqp3"
	"github.com/tieredretry/watermill-retry/internal/edge"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
)

// RabbitMQ is watermill-amqp v2. The broker delays the messages, in queues with a TTL: there is no relay.
func RabbitMQ(uri string, logger watermill.LoggerAdapter) Backend {
	return rabbitMQ("rabbitmq-v2", func(group string) amqpv2.Config {
		c := amqpv2.NewDurablePubSubConfig(uri, amqpv2.GenerateQueueNameTopicNameWithSuffix(group))
		c.Publish.ConfirmDelivery = true
		return c
	}, config.NewBuilder, amqpv2.NewPublisher, amqpv2.NewSubscriber, logger)
}

// RabbitMQv3 is watermill-amqp v3.
func RabbitMQv3(uri string, logger watermill.LoggerAdapter) Backend {
	return rabbitMQ("rabbitmq-v3", func(group string) amqpv3.Config {
		c := amqpv3.NewDurablePubSubConfig(uri, amqpv3.GenerateQueueNameTopicNameWithSuffix(group))
		c.Publish.ConfirmDelivery = true
		return c
	}, configamqp3.NewBuilder, amqpv3.NewPublisher, amqpv3.NewSubscriber, logger)
}

// rabbitMQ is a major version of watermill-amqp, whose configuration, publisher and subscriber are C, P and S.
func rabbitMQ[C any, M edge.Major[C], P message.Publisher, S message.Subscriber](
	name string,
	fanOut func(group string) C,
	newBuilder func(rabbitmq.BuilderConfig[C, M]) (*rabbitmq.Builder[C, M], error),
	newPublisher func(C, watermill.LoggerAdapter) (P, error),
	newSubscriber func(C, watermill.LoggerAdapter) (S, error),
	logger watermill.LoggerAdapter,
) Backend {
	return Backend{
		Name:      name,
		Publisher: func() (message.Publisher, error) { return newPublisher(fanOut(""), logger) },
		Connect: func(app App) (*Retries, error) {
			rabbit, err := newBuilder(rabbitmq.BuilderConfig[C, M]{AMQP: fanOut(app.Group), Schedule: app.Schedule, Prefix: app.Prefix})
			if err != nil {
				return nil, err
			}
			failures, err := app.failures(func() (message.Publisher, error) { return rabbit.NewPublisher(logger) })
			if err != nil {
				return nil, err
			}
			settings := app.configure(rabbit.TieredRetryConfig(failures))
			retry, err := middleware.NewTieredRetry(settings, logger)
			if err != nil {
				return nil, errors.Join(err, failures.Close())
			}
			return &Retries{
				Config:     settings,
				Subscriber: func(string) (message.Subscriber, error) { return newSubscriber(rabbit.SubscriberConfig(), logger) },
				Handle: func(router *message.Router, name, topic string, s message.Subscriber, h message.NoPublishHandlerFunc) {
					router.AddConsumerHandler(name, topic, s, h).AddMiddleware(retry.Middleware)
				},
				DeadLetters: func(_, topic string) (message.Subscriber, string, error) {
					s, err := newSubscriber(rabbit.DeadLetterSubscriberConfig(), logger)
					return s, topic, err
				},
				Close: failures.Close,
			}, nil
		},
	}
}
