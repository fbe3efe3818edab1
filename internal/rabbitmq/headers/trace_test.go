package headers_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestWaitingMessagesFoldTheTrace: it needs no header of its own on a tier, and comes back with the message.
func TestWaitingMessagesFoldTheTrace(t *testing.T) {
	t.Parallel()
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	m := headers.New(app.Plain{Marshaler: textual{}, UUIDKey: publisher.UUIDHeader}, naming.Default)
	msg := message.NewMessage("order-1", nil)
	retry.Record{Failures: 1, Topic: "orders", Traceparent: traceparent}.Write(msg.Metadata)
	waiting, err := m.Marshal(msg)
	require.NoError(t, err)
	assert.NotContains(t, waiting.Headers, retry.TraceparentKey)
	back, err := m.Unmarshal(amqp091.Delivery{Acknowledger: new(amqp091.Channel), Exchange: naming.Default.ReturnExchange(), Headers: waiting.Headers})
	require.NoError(t, err)
	assert.Equal(t, traceparent, back.Metadata[retry.TraceparentKey])
}
