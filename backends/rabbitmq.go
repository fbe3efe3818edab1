package backends

import (
	"github.com/ThreeDotsLabs/watermill"
	amqpv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqpv3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/config/amqp3"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// RabbitMQ is watermill-amqp v2. The broker delays the messages, in queues with a TTL: there is no relay. App.MaxHop,
// App.Limit and App.HandlerLimit have no effect.
func RabbitMQ(uri string, logger watermill.LoggerAdapter) Backend {
	fanOut := func(app App) amqpv2.Config {
		c := amqpv2.NewDurablePubSubConfig(uri, amqpv2.GenerateQueueNameTopicNameWithSuffix(app.Group))
		c.Publish.ConfirmDelivery = true
		c.Marshaler = app.marshaler(c.Marshaler)
		return c
	}
	b := rabbitMQ("rabbitmq-v2", uri, logger)
	b.Publisher = func() (message.Publisher, error) { return amqpv2.NewPublisher(fanOut(App{}), logger) }
	b.Connect = func(app App) (*Connection, error) {
		c, err := config.Connect(config.Config{
			AMQP: fanOut(app), Policy: retry.Policy{Schedule: app.Schedule},
			Settings: rabbitmq.Settings{Prefix: app.Prefix},
		}, logger)
		if err != nil {
			return nil, err
		}
		deadLetters := func(_, topic string) (message.Subscriber, string, error) {
			reader, err := config.DeadLetterSubscriberConfig(fanOut(app), "")
			if err != nil {
				return nil, "", err
			}
			s, err := amqpv2.NewSubscriber(reader, logger)
			return s, topic, err
		}
		return &Connection{Connection: app.connection(c), DeadLetters: deadLetters}, nil
	}
	return b
}

// RabbitMQv3 is watermill-amqp v3.
func RabbitMQv3(uri string, logger watermill.LoggerAdapter) Backend {
	fanOut := func(app App) amqpv3.Config {
		c := amqpv3.NewDurablePubSubConfig(uri, amqpv3.GenerateQueueNameTopicNameWithSuffix(app.Group))
		c.Publish.ConfirmDelivery = true
		c.Marshaler = app.marshaler(c.Marshaler)
		return c
	}
	b := rabbitMQ("rabbitmq-v3", uri, logger)
	b.Publisher = func() (message.Publisher, error) { return amqpv3.NewPublisher(fanOut(App{}), logger) }
	b.Connect = func(app App) (*Connection, error) {
		c, err := amqp3.Connect(amqp3.Config{
			AMQP: fanOut(app), Policy: retry.Policy{Schedule: app.Schedule},
			Settings: rabbitmq.Settings{Prefix: app.Prefix},
		}, logger)
		if err != nil {
			return nil, err
		}
		deadLetters := func(_, topic string) (message.Subscriber, string, error) {
			reader, err := amqp3.DeadLetterSubscriberConfig(fanOut(app), "")
			if err != nil {
				return nil, "", err
			}
			s, err := amqpv3.NewSubscriber(reader, logger)
			return s, topic, err
		}
		return &Connection{Connection: app.connection(c), DeadLetters: deadLetters}, nil
	}
	return b
}

// rabbitMQ is what both majors share.
func rabbitMQ(name, uri string, logger watermill.LoggerAdapter) Backend {
	return Backend{
		Name: name,
		Letters: func(app App) (*Letters, error) {
			store, err := deadletter.Open(deadletter.Config{URI: uri, Prefix: app.Prefix}, logger)
			return &Letters{Store: store, QueueOf: func(_, topic string) (string, error) {
				return deadletter.QueueOf(amqpv2.GenerateQueueNameTopicNameWithSuffix(app.Group)(topic)), nil
			}}, err
		},
	}
}

// connection is a connection with the app's group and observers.
func (a App) connection(c retry.Connection) retry.Connection {
	if a.Observer != nil {
		c.Observe(a.Observer)
	}
	if a.AfterCopy != nil {
		c.Observe(copied{after: a.AfterCopy})
	}
	return grouped{c, a.Group}
}

// copied calls App.AfterCopy: an Event comes after the broker has confirmed the copy, and before the message is
// acknowledged.
type copied struct {
	retry.NopObserver
	after func(topic string)
}

func (c copied) Event(e retry.Event) {
	if e.Outcome == retry.Retried {
		c.after("")
	}
}

// marshaler adds BeforeCopy to the app's marshaler: a copy is marshaled just before it is published.
func (a App) marshaler(m amqpv2.Marshaler) amqpv2.Marshaler {
	if a.BeforeCopy == nil {
		return m
	}
	return observedMarshaler{m, a}
}

type observedMarshaler struct {
	amqpv2.Marshaler
	app App
}

func (m observedMarshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	m.app.BeforeCopy("")
	return m.Marshaler.Marshal(msg)
}
