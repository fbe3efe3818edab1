package retry_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// compressing is an app's marshaler with a format of its own. It cannot marshal the message with the UUID id0.
type compressing struct{ amqp.DefaultMarshaler }

var format = []byte("format 1:")

func (c compressing) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	if msg.UUID == id0 {
		return amqp091.Publishing{}, errors.New("no format for this message")
	}
	p, err := c.DefaultMarshaler.Marshal(msg)
	p.Body = append(bytes.Clone(format), p.Body...)
	return p, err
}

func (c compressing) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	body, found := bytes.CutPrefix(d.Body, format)
	if !found {
		return nil, errors.New("not the app's format")
	}
	d.Body = body
	return c.DefaultMarshaler.Unmarshal(d)
}

// TestRawDeadLetter: a dead letter that the app's marshaler cannot marshal is in the dead-letter queue with payload, metadata and
// properties. A copy for a tier is refused, so that the message can be dead-lettered at once.
func TestRawDeadLetter(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	own := amqp.NewDurableQueueConfig(p.uri)
	own.Marshaler = compressing{}
	app, err := config.NewBuilder(config.Config{AMQP: own, Policy: retry.Policy{Schedule: backoff.Constant(time.Minute, 1)}})
	require.NoError(t, err)
	require.NoError(t, app.Topology("orders").Declare(p.channel))
	tiered, err := app.NewTieredRetry(nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, app.Close()) }()

	deliveries, err := p.channel.Consume("orders", "", true, false, false, false, nil)
	require.NoError(t, err)
	marshaler := app.SubscriberConfig().Marshaler
	deadLetter := func(sent amqp091.Publishing) {
		sent.Body, sent.CorrelationId, sent.Headers["number"] = append(bytes.Clone(format), sent.Body...), "c-1", int64(7)
		require.NoError(t, p.channel.Publish("", "orders", false, false, sent))
		msg, err := marshaler.Unmarshal(next(t, deliveries))
		require.NoError(t, err)

		failure := backoff.Permanent(errDown)
		if msg.UUID == id0 {
			failure = errDown // the copy for the tier is refused
		}
		require.NoError(t, testapp.Fail(tiered, marshaler, "orders", msg, failure))
	}
	stock, err := config.DeadLetterSubscriberConfig(amqp.NewDurableQueueConfig(p.uri), "")
	require.NoError(t, err)
	with, err := config.DeadLetterSubscriberConfig(own, "")
	require.NoError(t, err)
	for _, reader := range []struct {
		config amqp.Config
		prefix string // of what it reads where the app's marshaler has marshaled
	}{{stock, string(format)}, {with, ""}} {
		subscriber := p.subscriber(t, reader.config, watermill.NopLogger{})
		letters, err := subscriber.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		for i, sent := range testapp.Orders(2) {
			deadLetter(sent)
			letter := next(t, letters)
			for letter.UUID != testapp.ID(i) { // of the reader before: its Close can be faster than its last ack
				letter.Ack()
				letter = next(t, letters)
			}
			assert.Equal(t, map[bool]string{true: "", false: reader.prefix}[i == 0]+"order "+letter.UUID, string(letter.Payload))
			assert.Equal(t, "t"+letter.UUID, letter.Metadata["trace"])
			record, known := retry.ReadRecord(letter.Metadata)
			require.True(t, known)
			assert.NotZero(t, record.LastFailedAt)
			assert.Equal(t, retry.Record{
				Failures: 1, Topic: "orders", Handler: "failing", Reason: errDown.Error(), ErrorType: "*errors.errorString",
				FirstFailedAt: record.LastFailedAt, LastFailedAt: record.LastFailedAt,
				DeadReason: map[bool]retry.DeadReason{true: retry.DeadReasonRefused, false: retry.DeadReasonPermanent}[i == 0],
			}, record)
			again, err := stock.Marshaler.Marshal(letter)
			require.NoError(t, err)
			assert.Equal(t, "c-1", again.CorrelationId)
			assert.Equal(t, int64(7), again.Headers["number"])
			letter.Ack()
		}
		require.NoError(t, subscriber.Close())
	}
}
