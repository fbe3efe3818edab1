package headers

import (
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
)

// buildersMarshaler marks what it unmarshals with the token of a builder.
type buildersMarshaler struct {
	*marshaler
	token string
}

// NewBuilders is New for watermill-amqp's subscriber, which sets a message's context only after Unmarshal. So the mark
// is in the metadata, in place of what a publisher may have sent there.
func NewBuilders(own app.Marshaler, prefix naming.Prefix, token string) app.Marshaler {
	return &buildersMarshaler{newMarshaler(own, prefix), token}
}

func (m *buildersMarshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	msg, err := m.marshaler.Unmarshal(delivery)
	if err != nil {
		return nil, err
	}
	msg.Metadata[msgctx.BuilderKey] = m.token
	return msg, nil
}
