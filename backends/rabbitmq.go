package backends

import (
	"github.com/ThreeDotsLabs/watermill"
	amqpv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqpv3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/config/amqp3"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// RabbitMQ is watermill-amqp v2. The broker delays the messages, in queues with a TTL: there is no relay. App.MaxHop,
// App.Limit and App.HandlerLimit have no effect.
func RabbitMQ(uri string, logger watermill.LoggerAdapter) Backend {
	return rabbitMQv2{rabbitMQ{uri, logger}}
}

// RabbitMQv3 is watermill-amqp v3.
func RabbitMQv3(uri string, logger watermill.LoggerAdapter) Backend {
	return rabbitMQv3{rabbitMQ{uri, logger}}
}

// rabbitMQ is what both majors share.
type rabbitMQ struct {
	uri    string
	logger watermill.LoggerAdapter
}

// Letters implements Backend.
func (r rabbitMQ) Letters(app App) (letters.Store, error) {
	return deadletter.Open(deadletter.Config{URI: r.uri, Prefix: app.Prefix}, r.logger)
}

// QueueOf implements Backend.
func (rabbitMQ) QueueOf(app App, _, topic string) string {
	return deadletter.QueueOf(amqpv2.GenerateQueueNameTopicNameWithSuffix(app.Group)(topic))
}

// observe attaches the observers of an app.
func (rabbitMQ) observe(app App, c retry.Connection, err error) (retry.Connection, error) {
	if err == nil && app.Observer != nil {
		c.Observe(app.Observer)
	}
	if err == nil && app.Hook != nil {
		c.Observe(copied{hook: app.Hook})
	}
	return c, err
}

type rabbitMQv2 struct{ rabbitMQ }

func (r rabbitMQv2) fanOut(app App) amqpv2.Config {
	c := amqpv2.NewDurablePubSubConfig(r.uri, amqpv2.GenerateQueueNameTopicNameWithSuffix(app.Group))
	c.Publish.ConfirmDelivery = true
	c.Marshaler = hookedMarshaler{c.Marshaler, app.Hook}
	return c
}

// Publisher implements Backend.
func (r rabbitMQv2) Publisher() (message.Publisher, error) {
	return amqpv2.NewPublisher(r.fanOut(App{}), r.logger)
}

// Connect implements Backend.
func (r rabbitMQv2) Connect(app App) (retry.Connection, error) {
	c, err := config.Connect(config.Config{
		AMQP: r.fanOut(app), Policy: retry.Policy{Schedule: app.Schedule},
		Settings: rabbitmq.Settings{Prefix: app.Prefix},
	}, r.logger)
	return r.observe(app, c, err)
}

// DeadLetters implements Backend.
func (r rabbitMQv2) DeadLetters(app App, _, topic string) (message.Subscriber, string, error) {
	c, err := config.DeadLetterSubscriberConfig(r.fanOut(app), "")
	if err != nil {
		return nil, "", err
	}
	s, err := amqpv2.NewSubscriber(c, r.logger)
	return s, topic, err
}

type rabbitMQv3 struct{ rabbitMQ }

func (r rabbitMQv3) fanOut(app App) amqpv3.Config {
	c := amqpv3.NewDurablePubSubConfig(r.uri, amqpv3.GenerateQueueNameTopicNameWithSuffix(app.Group))
	c.Publish.ConfirmDelivery = true
	c.Marshaler = hookedMarshaler{c.Marshaler, app.Hook}
	return c
}

// Publisher implements Backend.
func (r rabbitMQv3) Publisher() (message.Publisher, error) {
	return amqpv3.NewPublisher(r.fanOut(App{}), r.logger)
}

// Connect implements Backend.
func (r rabbitMQv3) Connect(app App) (retry.Connection, error) {
	c, err := amqp3.Connect(amqp3.Config{
		AMQP: r.fanOut(app), Policy: retry.Policy{Schedule: app.Schedule},
		Settings: rabbitmq.Settings{Prefix: app.Prefix},
	}, r.logger)
	return r.observe(app, c, err)
}

// DeadLetters implements Backend.
func (r rabbitMQv3) DeadLetters(app App, _, topic string) (message.Subscriber, string, error) {
	c, err := amqp3.DeadLetterSubscriberConfig(r.fanOut(app), "")
	if err != nil {
		return nil, "", err
	}
	s, err := amqpv3.NewSubscriber(c, r.logger)
	return s, topic, err
}

// copied calls the hook after a copy: an Event comes after the broker has confirmed it, and before the message is
// acknowledged.
type copied struct {
	retry.NopObserver
	hook Hook
}

func (c copied) Event(e retry.Event) {
	if e.Outcome == retry.Retried {
		c.hook.AfterCopy("")
	}
}

// hookedMarshaler calls the hook before a copy: it is marshaled just before it is published.
type hookedMarshaler struct {
	amqpv2.Marshaler
	hook Hook
}

func (m hookedMarshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	if m.hook != nil {
		m.hook.BeforeCopy("")
	}
	return m.Marshaler.Marshal(msg)
}
