package subscriber_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
)

func TestTheFirstSubscribeReturnsErrors(t *testing.T) {
	t.Parallel()
	connection := open(t, broker.URL(t))
	refused := errors.New("no such topology")
	s := newSubscriber(connection, config{
		QueueOf: func(topic string) string {
			if topic == "long" {
				return strings.Repeat("x", 256)
			}
			return topic
		},
		Declare: func(d *subscriber.Declaration, topic string) error {
			switch topic {
			case "refused":
				return refused
			case "panics":
				panic("no queue")
			}
			return nil
		},
	})
	missing := broker.Name(t, "missing")
	for topic, text := range map[string]string{
		"refused": `topic "refused": declare: no such topology`,
		"panics":  `topic "panics": declare: Declare panicked: no queue`,
		missing:   "404",
		"":        "its queue has no name",
		"long":    "256 bytes, at most 255",
	} {
		messages, err := s.Subscribe(t.Context(), topic)
		require.ErrorContains(t, err, text)
		assert.Nil(t, messages)
	}
	_, err := s.Subscribe(t.Context(), "refused")
	require.ErrorIs(t, err, refused)
	var cause *amqp091.Error
	_, err = s.Subscribe(t.Context(), missing)
	require.ErrorAs(t, err, &cause)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Subscribe(ended, "refused")
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, s.SubscribeInitialize("refused"), refused)
	require.NoError(t, s.SubscribeInitialize("fine"))

	q := newQueue(t, classic)
	q.publish(t, "after all of them")
	messages, err := s.Subscribe(t.Context(), q.name)
	require.NoError(t, err, "the connection is not harmed")
	receive(t, messages).Ack()
	assert.Len(t, connection.Health().Subscriptions, 1)
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.SubscribeInitialize("fine"), subscriber.ErrClosed)
}
