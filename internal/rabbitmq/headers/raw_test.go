package headers_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// enveloping puts the payload into an envelope. It does so until fault is set.
type enveloping struct {
	textual
	fault any // an error, or the value of a panic
}

const envelope = "envelope:"

func (e enveloping) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	if err, ok := e.fault.(error); ok {
		return amqp091.Publishing{Body: []byte("a part")}, err
	} else if e.fault != nil {
		panic(e.fault)
	}
	p, err := e.textual.Marshal(msg)
	p.Body = append([]byte(envelope), p.Body...)
	return p, err
}

func (e enveloping) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	body, found := bytes.CutPrefix(d.Body, []byte(envelope))
	if !found {
		return nil, errors.New("no envelope")
	}
	d.Body = body
	msg, err := e.textual.Unmarshal(d)
	if err == nil {
		msg.UUID = msg.Metadata[publisher.UUIDHeader]
		delete(msg.Metadata, publisher.UUIDHeader)
	}
	return msg, err
}

// unmarshalable panics when it is printed, and when the panic is printed.
type unmarshalable struct{}

func (unmarshalable) Error() string { panic(unmarshalable{}) }

// endless is an error whose Format method prints 10 MB.
type endless struct{}

func (endless) Error() string { return "short" }
func (endless) Format(state fmt.State, _ rune) {
	_, _ = io.WriteString(state, strings.Repeat("x", 10<<20))
}

// failed returns a message that has failed, as the middleware publishes it, and its metadata before.
func failed(t *testing.T, m app.Marshaler, why retry.DeadReason) (*message.Message, message.Metadata) {
	t.Helper()
	msg, err := m.Unmarshal(amqp091.Delivery{
		Acknowledger: configtest.Settled{}, Exchange: "shop", RoutingKey: "eu", ContentType: "application/json", CorrelationId: "c-1",
		Body: []byte(envelope + "order 1"), Headers: amqp091.Table{publisher.UUIDHeader: "uuid-1", "trace": "abc", "number": int64(7)},
	})
	require.NoError(t, err)
	metadata := maps.Clone(msg.Metadata)
	retry.Record{Failures: 2, Topic: "orders", Handler: "billing", Reason: "down", DeadReason: why}.Write(msg.Metadata)
	return msg, metadata
}

// faults are what the app's marshaler returns, and panics with where it is no error.
var faults = map[string]any{
	"error": errors.New("no schema"), "panic": "no schema", "unprintable error": unmarshalable{}, "long": errors.New(strings.Repeat("x", 10<<20)),
	"long runes": errors.New("x" + strings.Repeat("€", 10<<20/3)), "not UTF-8": errors.New("\xff\xfe" + strings.Repeat("\xe2\x82", 2000)),
	"formats itself": endless{}, "joined": errors.Join(errors.New("no JSON"), unmarshalable{}),
}

// unreadable is a marshaler that reads no message.
type unreadable struct {
	textual
	fault any
}

func (u unreadable) Unmarshal(amqp091.Delivery) (*message.Message, error) {
	if err, ok := u.fault.(error); ok {
		return nil, err
	}
	panic(u.fault)
}

// The text of any fault fits into the headers of a dead letter.
func TestTheMarkOfAnUnreadableMessageIsBounded(t *testing.T) {
	for name, fault := range faults {
		msg := readBy(t, headers.New(unreadable{fault: fault}, naming.Default), configtest.Foreign())
		text, marked := msg.Metadata[recordkey.UnmarshalError]
		assert.True(t, marked, name)
		assert.LessOrEqual(t, len(text), 1100, name)
		assert.True(t, utf8.ValidString(text), name)
	}
}

func TestDeadLetterThatTheAppCannotMarshalIsRaw(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			m := headers.New(enveloping{fault: fault}, naming.Default)
			msg, metadata := failed(t, m, retry.DeadReasonExhausted)
			p := writtenBy(t, m, msg)
			assert.Equal(t, "order 1", string(p.Body))
			assert.Equal(t, "application/json", p.ContentType)
			assert.Equal(t, "c-1", p.CorrelationId)
			assert.EqualValues(t, amqp091.Persistent, p.DeliveryMode)
			for key, value := range map[string]any{
				publisher.UUIDHeader: "uuid-1", "trace": "abc", "number": int64(7), recordkey.DeadReason: "exhausted", "reason_poisoned": "down",
			} {
				assert.Equal(t, value, p.Headers[key], key)
			}
			assert.NotContains(t, p.Headers, recordkey.Properties)
			why := p.Headers["retry_marshal_error"].(string)
			assert.LessOrEqual(t, len(why), 1100)
			assert.True(t, utf8.ValidString(why))

			letter := configtest.ComeBack(p)
			letter.Exchange, letter.RoutingKey = "retry", "dead.orders"
			delete(letter.Headers, "x-death") // the middleware published it
			for reader, app := range map[string]app.Marshaler{"the app's": enveloping{fault: fault}, "another": textual{}} {
				read := readBy(t, headers.NewDeadLetters(app), letter)
				assert.Equal(t, "order 1", string(read.Payload), reader)
				assert.Equal(t, "uuid-1", read.UUID, reader)
				record, known := retry.ReadRecord(read.Metadata)
				require.True(t, known, reader)
				assert.Equal(t, retry.DeadReasonExhausted, record.DeadReason, reader)
				assert.Equal(t, "down", record.Reason, reader)

				for _, key := range retry.RecordKeys() { // a redrive, after the app is repaired
					delete(read.Metadata, key)
				}
				again := writtenBy(t, headers.NewDeadLetters(enveloping{}), read)
				redriven := configtest.ComeBack(again)
				redriven.Exchange, redriven.RoutingKey = "", "orders"
				for _, key := range []string{"x-death", "x-first-death-reason", "x-last-death-queue", "x-delivery-count"} {
					delete(redriven.Headers, key)
				}
				back := readBy(t, headers.New(enveloping{}, naming.Default), redriven)
				assert.Equal(t, "order 1", string(back.Payload), reader)
				assert.Equal(t, "abc", back.Metadata["trace"], reader)
				assert.Equal(t, len(metadata), len(back.Metadata), "%s: %v", reader, back.Metadata)
				assert.Equal(t, "application/json", again.ContentType, reader)
				assert.Equal(t, int64(7), again.Headers["number"], reader)
			}
		})
	}
}

func TestOnlyADeadLetterIsRaw(t *testing.T) {
	for name, fault := range map[string]any{"error": errors.New("no schema"), "panic": "no schema", "unprintable": unmarshalable{}} {
		m := headers.New(enveloping{fault: fault}, naming.Default)
		msg, _ := failed(t, m, "")
		p, err := m.Marshal(msg)
		require.ErrorContains(t, err, "the app's marshaler", name)
		assert.Empty(t, p, name)
		assert.True(t, unpublished.KindOf(&failure.Error{Err: publish.ErrRefused, Cause: err}).ForGood(), name)
	}
	m := headers.New(enveloping{fault: fmt.Errorf("registry: %w", os.ErrDeadlineExceeded)}, naming.Default)
	msg, _ := failed(t, m, retry.DeadReasonExhausted)
	_, err := m.Marshal(msg)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "a later try can succeed")
	assert.False(t, unpublished.KindOf(&failure.Error{Err: publish.ErrRefused, Cause: err}).ForGood())
}

// A publisher of the app's messages cannot choose that the app's marshaler, which may verify them, is left out.
func TestForgedRawLetter(t *testing.T) {
	forged := amqp091.Delivery{Acknowledger: configtest.Settled{}, Body: []byte("order 1"), Headers: amqp091.Table{
		publisher.UUIDHeader: "uuid-1", "retry_marshal_error": "forged",
	}}
	for name, from := range map[string]struct {
		exchange, routingKey string
		deaths               []any
		reader               app.Marshaler
	}{
		"on the work queue":                   {"shop", "eu", nil, headers.New(enveloping{}, naming.Default)},
		"on the work queue, from a tier":      {"retry.return", "10s.orders", nil, headers.New(enveloping{}, naming.Default)},
		"dead-lettered by the broker":         {"retry", "dead.orders", []any{amqp091.Table{"reason": "delivery_limit"}}, headers.NewDeadLetters(enveloping{})},
		"in the dead-letter queue, by itself": {"", "orders.dead", nil, headers.NewDeadLetters(enveloping{})},
	} {
		delivery := forged
		delivery.Exchange, delivery.RoutingKey, delivery.Headers = from.exchange, from.routingKey, maps.Clone(forged.Headers)
		if from.deaths != nil {
			delivery.Headers["x-death"] = from.deaths
		}
		msg := readBy(t, from.reader, delivery)
		assert.Empty(t, msg.UUID, "%s: it is marked as unreadable", name)
		assert.NotContains(t, msg.Metadata, "retry_marshal_error", name)
		p := writtenBy(t, from.reader, msg)
		assert.NotContains(t, p.Headers, "retry_marshal_error", name)
	}
}
