package subscriber_test

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
)

// uuidHeader is the header with the UUID of a test's message.
const uuidHeader = "_watermill_message_uuid"

// A config is that of a subscriber and of its handler. Each function may be nil.
type config struct {
	QueueOf   func(topic string) string
	Declare   func(declaration subscriber.Declaration, topic string) error
	Unmarshal func(delivery amqp091.Delivery) (*message.Message, error)
	Nacked    func(msg *message.Message) bool

	Concurrency, Prefetch              int
	OrderKey                           func(msg *message.Message) string
	Gate                               *gate.Gate
	Consumer                           subscriber.ConsumerConfig
	CloseTimeout, NackInitial, NackMax time.Duration
}

func newSubscriber(
	connection *subscriber.Connection, c config, logger watermill.LoggerAdapter,
) (*subscriber.Subscriber, error) {
	return subscriber.NewSubscriber(connection, handler{c}, subscriber.Config{
		Concurrency: c.Concurrency, Prefetch: c.Prefetch, OrderKey: c.OrderKey, Gate: c.Gate, Consumer: c.Consumer,
		CloseTimeout: c.CloseTimeout, NackInitial: c.NackInitial, NackMax: c.NackMax,
	}, logger)
}

// A handler is that of a config.
type handler struct{ config config }

func (h handler) QueueOf(topic string) (string, error) {
	if h.config.QueueOf == nil {
		return topic, nil
	}
	return h.config.QueueOf(topic), nil
}

func (h handler) Declare(d subscriber.Declaration, topic string) error {
	if h.config.Declare == nil {
		return nil
	}
	return h.config.Declare(d, topic)
}

func (h handler) MayBeQuorum(string) bool { return true }

func (h handler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if h.config.Unmarshal != nil {
		return h.config.Unmarshal(d)
	}
	uuid, _ := d.Headers[uuidHeader].(string)
	return message.NewMessage(uuid, d.Body), nil
}

func (h handler) Nacked(msg *message.Message, _ amqp091.Delivery) bool {
	return h.config.Nacked != nil && h.config.Nacked(msg)
}
