package headers_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// TestTokenOfABuilder: it is written over what a publisher sent, in a header or in the body, and no copy has it.
func TestTokenOfABuilder(t *testing.T) {
	for name, own := range map[string]app.Marshaler{"textual": textual{}, "plain": app.Plain{Marshaler: textual{}, UUIDKey: "uuid"}, "in the body": forging{}} {
		m := headers.NewBuilders(own, naming.Default, "token")
		msg, err := m.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: amqp091.Table{msgctx.BuilderKey: "forged"}})
		require.NoError(t, err)
		assert.Equal(t, "token", msg.Metadata[msgctx.BuilderKey], name)
		p, err := m.Marshal(msg)
		require.NoError(t, err)
		assert.NotContains(t, p.Headers, msgctx.BuilderKey, name)
	}
	for name, other := range map[string]app.Marshaler{
		"New": headers.New(textual{}, naming.Default), "NewDeadLetters": headers.NewDeadLetters(textual{}),
	} {
		msg, err := other.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: amqp091.Table{msgctx.BuilderKey: "forged"}})
		require.NoError(t, err)
		assert.NotContains(t, msg.Metadata, msgctx.BuilderKey, name)
	}
}

// forging makes metadata of the body.
type forging struct{ bodyOnly }

func (forging) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	msg := message.NewMessage("1", d.Body)
	msg.Metadata[msgctx.BuilderKey] = "forged"
	return msg, nil
}

// TestADeletedQueueIsDeclaredAgainAfterAPause: what is not a delivery is the first sign of a deleted queue.
func TestADeletedQueueIsDeclaredAgainAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, err := headers.New(textual{}, naming.Default).Unmarshal(amqp091.Delivery{})
		require.Error(t, err)
		assert.GreaterOrEqual(t, time.Since(begin), wire.AfterDeletion/2)
		assert.LessOrEqual(t, time.Since(begin), wire.AfterDeletion)
	})
}

// literal does not use message.NewMessage.
type literal struct{ bodyOnly }

func (literal) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	return &message.Message{UUID: "1", Payload: d.Body}, nil
}

func TestMessageWithoutItsConstructor(t *testing.T) {
	for _, m := range []app.Marshaler{
		headers.New(literal{}, naming.Default), headers.NewBuilders(literal{}, naming.Default, "token"), headers.NewDeadLetters(literal{}),
	} {
		msg, err := m.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, Body: []byte("body")})
		require.NoError(t, err)
		assert.Equal(t, "1body", msg.UUID+string(msg.Payload))
		assert.NotNil(t, msg.Metadata, "the subscriber of v3 writes to it")
		acked := msg.Acked()
		msg.Ack()
		<-acked
	}
}
