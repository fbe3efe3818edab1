package testapp

import (
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
)

// An Unmarshaler is the marshaler of a builder.
type Unmarshaler interface {
	Unmarshal(amqp091.Delivery) (*message.Message, error)
}

// Fail publishes the copy of a message that has not come from the broker: a handler of the topic fails with this error.
// The middleware and the marshaler are those of one builder.
func Fail(of message.HandlerMiddleware, by Unmarshaler, topic string, msg *message.Message, failure error) error {
	marked, err := by.Unmarshal(configtest.Foreign())
	if err != nil {
		return err
	}
	msg.Metadata[msgctx.BuilderKey] = marked.Metadata[msgctx.BuilderKey]
	msg.SetContext(msgctx.WithOrigin(msg.Context(), topic, "failing"))
	_, err = of(func(*message.Message) ([]*message.Message, error) { return nil, failure })(msg)
	return err
}

// Fail is the function Fail for the app's own middleware.
func (a *Parts) Fail(topic string, msg *message.Message, failure error) error {
	return Fail(a.Retry, a.Builder.SubscriberConfig().Marshaler, topic, msg, failure)
}
