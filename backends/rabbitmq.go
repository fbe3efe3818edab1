package backends

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	amqpv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqpv3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/configv3"
	"github.com/tieredretry/watermill-retry/middleware"
)

// RabbitMQ is watermill-amqp v2. The broker holds the messages, in queues with a TTL: there is no relay.
func RabbitMQ(uri string, logger watermill.LoggerAdapter) Backend {
	fanOut := func(group string) amqpv2.Config {
		c := amqpv2.NewDurablePubSubConfig(uri, amqpv2.GenerateQueueNameTopicNameWithSuffix(group))
		c.Publish.ConfirmDelivery = true
		return c
	}
	return Backend{
		Name:      "rabbitmq-v2",
		Publisher: func() (message.Publisher, error) { return amqpv2.NewPublisher(fanOut(""), logger) },
		Connect: func(app App) (*Retries, error) {
			rabbit, err := config.NewBuilder(config.BuilderConfig{AMQP: fanOut(app.Group), Schedule: app.Schedule, Prefix: app.Prefix})
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
				Config: settings,
				Subscriber: func(string) (message.Subscriber, error) {
					return amqpv2.NewSubscriber(rabbit.SubscriberConfig(), logger)
				},
				Handle: func(router *message.Router, name, topic string, s message.Subscriber, h message.NoPublishHandlerFunc) {
					router.AddConsumerHandler(name, topic, s, h).AddMiddleware(retry.Middleware)
				},
				DeadLetters: func(_, topic string) (message.Subscriber, string, error) {
					s, err := amqpv2.NewSubscriber(rabbit.DeadLetterSubscriberConfig(), logger)
					return s, topic, err
				},
				Close: failures.Close,
			}, nil
		},
	}
}

// RabbitMQv3 is watermill-amqp v3.
func RabbitMQv3(uri string, logger watermill.LoggerAdapter) Backend {
	fanOut := func(group string) amqpv3.Config {
		c := amqpv3.NewDurablePubSubConfig(uri, amqpv3.GenerateQueueNameTopicNameWithSuffix(group))
		c.Publish.ConfirmDelivery = true
		return c
	}
	return Backend{
		Name:      "rabbitmq-v3",
		Publisher: func() (message.Publisher, error) { return amqpv3.NewPublisher(fanOut(""), logger) },
		Connect: func(app App) (*Retries, error) {
			rabbit, err := configv3.NewBuilder(configv3.BuilderConfig{AMQP: fanOut(app.Group), Schedule: app.Schedule, Prefix: app.Prefix})
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
				Config: settings,
				Subscriber: func(string) (message.Subscriber, error) {
					return amqpv3.NewSubscriber(rabbit.SubscriberConfig(), logger)
				},
				Handle: func(router *message.Router, name, topic string, s message.Subscriber, h message.NoPublishHandlerFunc) {
					router.AddConsumerHandler(name, topic, s, h).AddMiddleware(retry.Middleware)
				},
				DeadLetters: func(_, topic string) (message.Subscriber, string, error) {
					s, err := amqpv3.NewSubscriber(rabbit.DeadLetterSubscriberConfig(), logger)
					return s, topic, err
				},
				Close: failures.Close,
			}, nil
		},
	}
}
