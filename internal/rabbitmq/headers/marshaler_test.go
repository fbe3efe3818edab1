package headers_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
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
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

func TestARecordInOneHeaderOrInManyIsTheSame(t *testing.T) {
	m := headers.New(textual{}, naming.Default)
	many := amqp091.Table{publisher.UUIDHeader: "a", "trace": "abc", "retry_failures": "2", "retry_topic": "orders", "retry_reason": "n1:1:\x00é", "retry_due_at": "soon"}
	read := func(exchange string, table amqp091.Table) message.Metadata {
		msg := readBy(t, m, amqp091.Delivery{Acknowledger: configtest.Settled{}, Exchange: exchange, RoutingKey: "1s.orders", Headers: table})
		delete(msg.Metadata, recordkey.Properties)
		return msg.Metadata
	}
	for _, exchange := range []string{"retry.return", "retry", ""} {
		assert.Equal(t, read(exchange, many), read(exchange, headers.Fold(many)))
	}
	both := headers.Fold(many)
	both["retry_failures"] = "1"
	assert.Equal(t, "2", read("", both)["retry_failures"], "an app without the library keeps the old record beside its own")

	msg := readBy(t, m, amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: many})
	p := writtenBy(t, m, msg)
	assert.Equal(t, headers.Fold(many), p.Headers)
	msg.Metadata[recordkey.DeadReason] = "exhausted"
	p = writtenBy(t, m, msg)
	many[recordkey.DeadReason] = "exhausted"
	assert.Equal(t, many, p.Headers, "a dead letter has a header for each key")
}

func TestUnreadableFoldedRecord(t *testing.T) {
	m := headers.New(textual{}, naming.Default)
	for _, text := range []string{"n", "n1", "n1:", "n2:1", "n-1:1", ":", "n99999999999999999999:1", "n1:1t", "\xff", "n1:1n9:1"} {
		msg := readBy(t, m, amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: amqp091.Table{"retry_record": text, "retry_failures": "7"}})
		assert.Equal(t, message.Metadata{"retry_failures": "7"}, msg.Metadata, "%q", text)
	}
	msg := readBy(t, m, amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: amqp091.Table{"retry_record": "z3:newn1:4"}})
	assert.Equal(t, message.Metadata{"retry_failures": "4"}, msg.Metadata, "a letter of a later version")
}

// bodyOnly drops metadata.
type bodyOnly struct{}

func (bodyOnly) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{Body: msg.Payload}, nil
}

func (bodyOnly) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	return message.NewMessage("", d.Body), nil
}

func FuzzProperties(f *testing.F) {
	f.Add("\x01S\x05hello")
	f.Add("\rF\x01\x01aA\x02V\xff")
	f.Add(strings.Repeat("\rA\x01", 100))
	f.Fuzz(func(t *testing.T, encoded string) { _ = headers.Decode(encoded) })
}

// textual refuses headers that are not strings, as watermill-amqp's own marshaler does.
type textual struct{}

func (textual) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	table := amqp091.Table{publisher.UUIDHeader: msg.UUID}
	for key, value := range msg.Metadata {
		table[key] = value
	}
	return amqp091.Publishing{Headers: table, Body: msg.Payload}, nil
}

func (textual) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	msg := message.NewMessage("", d.Body)
	for key, value := range d.Headers {
		text, ok := value.(string)
		if !ok {
			return nil, errors.New("not a string")
		}
		msg.Metadata[key] = text
	}
	return msg, nil
}

// readBy unmarshals a delivery that can be.
func readBy(t testing.TB, m app.Marshaler, d amqp091.Delivery) *message.Message {
	t.Helper()
	msg, err := m.Unmarshal(d)
	require.NoError(t, err)
	return msg
}

// writtenBy marshals a message that can be.
func writtenBy(t testing.TB, m app.Marshaler, msg *message.Message) amqp091.Publishing {
	t.Helper()
	p, err := m.Marshal(msg)
	require.NoError(t, err)
	return p
}

// foreignHeaders are those that a copy must have too: neither the broker's nor the library's.
func foreignHeaders(table amqp091.Table) amqp091.Table {
	foreign := amqp091.Table{}
	for key, value := range headers.Unfold(table) {
		if !slices.Contains(ours, key) && !strings.HasPrefix(key, "x-first-death-") && !strings.HasPrefix(key, "x-last-death-") {
			foreign[key] = value
		}
	}
	return foreign
}

// ours are the headers of the broker, then those of the library.
var ours = []string{
	"x-death", "x-delivery-count", "x-acquired-count", "CC", "BCC", "_watermill_amqp_redelivered",
	"retry_record", "retry_publish_id", "retry_user_id", "retry_exchange", "retry_routing_key", "retry_priority", "retry_marshal_error", "retry_properties", "retry_unmarshal_error",
}

const brokerHeaders = 6

// FuzzMarshaler: headers stay the same over any number of retries, and the dead letter can be read.
func FuzzMarshaler(f *testing.F) {
	f.Add("trace", "abc", []byte("body"), int64(5), "retry.return", "1s.orders")
	f.Add("x-death", "\xff", []byte{}, int64(-1), "", "")
	f.Add("retry_failures", "-1", []byte(nil), int64(1<<62), "retry.return", ".")
	f.Add("retry_dead_reason", "mine", []byte("body"), int64(1), "retry", "dead.orders")
	f.Add("retry_user_id", "root", []byte("body"), int64(1), "shop", "orders")
	f.Add(publisher.UUIDHeader, "", []byte("body"), int64(1), "", "orders")
	f.Add("", "", []byte("body"), int64(0), "", "orders")
	f.Add("retry_record", "n1:2t6:orders", []byte("body"), int64(0), "retry.return", "1s.orders")
	m, letters := headers.New(textual{}, naming.Default), headers.NewDeadLetters(textual{})
	f.Fuzz(func(t *testing.T, key, value string, body []byte, number int64, exchange, routingKey string) {
		raw := append([]byte{}, body...) // never nil, as from the wire
		sent := amqp091.Table{
			key: value, key + "n": number, key + "t": amqp091.Table{key: []any{number, raw, value, nil}}, key + "b": raw, key + "s": value,
			key + "f": float64(number), key + "z": nil, key + "d": time.Unix(number>>32, 0),
		}
		want := foreignHeaders(sent)
		delivery := amqp091.Delivery{Acknowledger: configtest.Settled{}, Body: body, Exchange: exchange, RoutingKey: routingKey, Headers: sent}
		for range 3 {
			msg := readBy(t, m, delivery)
			p := writtenBy(t, m, msg)
			require.Equal(t, string(body), string(p.Body))
			require.Equal(t, want, foreignHeaders(p.Headers))
			for _, header := range ours[:brokerHeaders] {
				require.NotContains(t, p.Headers, header, "the broker would count it")
			}
			delivery = configtest.ComeBack(p)
		}

		deaths := []any{amqp091.Table{"reason": value, "queue": key, "time": time.Unix(number>>32, 0), "count": number}, value}
		for _, xDeath := range []any{nil, deaths, deaths[1:], []any{}, value, number, amqp091.Table{key: value}, []any{amqp091.Table{"reason": number, "time": value}}} {
			letter := delivery
			letter.Exchange, letter.RoutingKey, letter.Headers = "retry", "dead.orders", maps.Clone(delivery.Headers)
			letter.Headers["x-death"] = xDeath
			msg := readBy(t, letters, letter)
			require.Equal(t, string(body), string(msg.Payload))
			if dead, _ := xDeath.([]any); len(dead) > 0 {
				if death, ok := dead[0].(amqp091.Table); ok {
					reason, _ := death["reason"].(string)
					require.Equal(t, reason, msg.Metadata[recordkey.DeadReason], "the broker's reason")
				}
			}
			_ = writtenBy(t, letters, msg)
		}
	})
}

func TestRecordReplacesAForeignHeaderOfAnotherType(t *testing.T) {
	m := headers.New(textual{}, naming.Default)
	msg := readBy(t, m, amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: amqp091.Table{"retry_failures": int64(7), "retry_due_at": int64(1)}})
	msg.Metadata[recordkey.Failures] = "1"
	p := writtenBy(t, m, msg)
	assert.Equal(t, amqp091.Table{"retry_failures": "1", "retry_due_at": int64(1)}, headers.Unfold(p.Headers))
	assert.NotContains(t, p.Headers, recordkey.Failures)
}

// TestTokenOfABuilder: it is written over what a publisher sent, in a header or in the body, and no copy has it.
func TestTokenOfABuilder(t *testing.T) {
	for name, own := range map[string]app.Marshaler{"textual": textual{}, "plain": app.Plain{Marshaler: textual{}, UUIDKey: "uuid"}, "in the body": forging{}} {
		m := headers.NewBuilders(own, naming.Default, "token")
		msg := readBy(t, m, amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: amqp091.Table{msgctx.BuilderKey: "forged"}})
		assert.Equal(t, "token", msg.Metadata[msgctx.BuilderKey], name)
		p := writtenBy(t, m, msg)
		assert.NotContains(t, p.Headers, msgctx.BuilderKey, name)
	}
	for name, other := range map[string]app.Marshaler{
		"New": headers.New(textual{}, naming.Default), "NewDeadLetters": headers.NewDeadLetters(textual{}),
	} {
		msg := readBy(t, other, amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: amqp091.Table{msgctx.BuilderKey: "forged"}})
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
		msg := readBy(t, m, amqp091.Delivery{Acknowledger: configtest.Settled{}, Body: []byte("body")})
		assert.Equal(t, "1body", msg.UUID+string(msg.Payload))
		assert.NotNil(t, msg.Metadata, "the subscriber of v3 writes to it")
		acked := msg.Acked()
		msg.Ack()
		<-acked
	}
}
