package headers_test

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/binding"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/middleware"
)

// bound returns a marshaler, and the number of its warnings by exchange and routing key.
func bound(source *middleware.Source) (app.Marshaler, map[string]int) {
	warnings := map[string]int{}
	return headers.NewConsuming(textual{}, naming.Default, source, func(exchange, routingKey string) { warnings[exchange+"/"+routingKey]++ }), warnings
}

func TestMessagesAreBoundToTheirSource(t *testing.T) {
	source := &middleware.Source{Name: "the builder"}
	m, _ := bound(source)
	first, second := new(amqp091.Channel), new(amqp091.Channel)
	of := func(channel *amqp091.Channel) *binding.Binding {
		msg, err := m.Unmarshal(amqp091.Delivery{Acknowledger: channel})
		require.NoError(t, err)
		msg.SetContext(t.Context()) // as watermill-amqp does
		b := binding.Of(msg)
		require.NotNil(t, b)
		assert.Same(t, source, b.Source)
		return b
	}
	assert.Same(t, of(first), of(first))
	assert.NotSame(t, of(first), of(second), "a handler may have the middleware, and another one not")

	for name, unbound := range map[string]app.Marshaler{
		"New": headers.New(textual{}, naming.Default), "NewDeadLetters": headers.NewDeadLetters(textual{}),
	} {
		msg, err := unbound.Unmarshal(amqp091.Delivery{Acknowledger: first})
		require.NoError(t, err)
		assert.Nil(t, binding.Of(msg), name)
	}
	_, err := m.Unmarshal(amqp091.Delivery{})
	require.Error(t, err, "not a delivery")
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

// feed gives deliveries to a consumer, one after the other, as watermill-amqp's subscriber does.
type feed struct {
	t       *testing.T
	m       app.Marshaler
	channel *amqp091.Channel
}

// next returns the message, and how long the consumer waited for it.
func (f *feed) next(redelivered bool, table amqp091.Table) (*message.Message, time.Duration) {
	begin := time.Now()
	msg, err := f.m.Unmarshal(amqp091.Delivery{
		Acknowledger: f.channel, Exchange: "retry.return", RoutingKey: "1s.orders", Redelivered: redelivered, Headers: table,
	})
	require.NoError(f.t, err)
	return msg, time.Since(begin)
}

func TestPauseWithoutTheMiddleware(t *testing.T) {
	counts := func(header string) func(int64) amqp091.Table {
		return func(n int64) amqp091.Table { return amqp091.Table{header: n, publisher.IDHeader: "1"} }
	}
	for name, table := range map[string]func(int64) amqp091.Table{
		"classic": counts("trace"), "quorum": counts("x-delivery-count"), "quorum on 4.3": counts("x-acquired-count"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, warnings := bound(nil)
				f := &feed{t: t, m: m, channel: new(amqp091.Channel)}
				msg, pause := f.next(false, nil)
				assert.Zero(t, pause)
				assert.Empty(t, warnings)
				var pauses []time.Duration
				for n := range 12 {
					msg.Nack()
					msg, pause = f.next(true, table(int64(n+1)))
					pauses = append(pauses, pause)
				}
				const ms = time.Millisecond
				assert.Equal(t, []time.Duration{
					10 * ms, 20 * ms, 40 * ms, 80 * ms, 160 * ms, 320 * ms, 640 * ms, time.Second, time.Second, time.Second, time.Second, time.Second,
				}, pauses)
				assert.Equal(t, map[string]int{"/orders": 12}, warnings, "where the message was before its retry")

				msg.Ack()
				_, pause = f.next(false, nil)
				assert.Zero(t, pause, "a message that has not failed")
			})
		})
	}
}

func TestNoPauseForOtherRedeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, warnings := bound(nil)
		f := &feed{t: t, m: m, channel: new(amqp091.Channel)}
		for range 3 { // what another consumer had in flight when it crashed
			msg, pause := f.next(true, nil)
			assert.Zero(t, pause)
			msg.Ack()
		}

		claimed := &feed{t: t, m: m, channel: new(amqp091.Channel)}
		for range 3 { // a quorum queue counts the first one, too
			msg, pause := claimed.next(true, amqp091.Table{"x-delivery-count": int64(9)})
			assert.Zero(t, pause, "a handler with the middleware")
			binding.Of(msg).Claim()
			msg.Nack()
		}
		assert.Empty(t, warnings)

		msg, _ := f.next(false, nil)
		msg.Nack()
		_, pause := f.next(true, nil)
		assert.Equal(t, 10*time.Millisecond, pause, "the claim of another consumer changes nothing here")
	})
}

// literal does not use message.NewMessage.
type literal struct{ bodyOnly }

func (literal) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	return &message.Message{UUID: "1", Payload: d.Body}, nil
}

func TestMessageWithoutItsConstructor(t *testing.T) {
	m := headers.NewConsuming(literal{}, naming.Default, nil, nil)
	channel := new(amqp091.Channel)
	first, err := m.Unmarshal(amqp091.Delivery{Acknowledger: channel, Body: []byte("body")})
	require.NoError(t, err)
	_, err = m.Unmarshal(amqp091.Delivery{Acknowledger: channel})
	require.NoError(t, err)
	assert.NotNil(t, binding.Of(first))
	assert.Nil(t, binding.Of(&message.Message{}))
	assert.Equal(t, "1body", first.UUID+string(first.Payload))
	acked := first.Acked()
	first.Ack()
	<-acked
}

func TestConsumersAreForgottenWithTheirChannels(t *testing.T) {
	const channels = 1000
	m, _ := bound(nil)
	for range channels {
		_, err := m.Unmarshal(amqp091.Delivery{Acknowledger: new(amqp091.Channel)})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		runtime.GC()
		return headers.Consumers(m) < channels/2
	}, time.Minute, time.Millisecond)
}
