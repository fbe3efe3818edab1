package subscriber_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
)

func TestANackIsPacedAndOthersGoOn(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]amqp091.Table{"quorum": quorum, "classic": classic} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t, arguments)
			q.publish(t, "nacked")
			_, _, messages := q.subscribe(t, broker.URL(t), config{NackInitial: 20 * time.Millisecond, NackMax: 400 * time.Millisecond})
			handled := newLedger()
			var mu sync.Mutex
			var arrived []time.Time
			handle(messages, func(msg *message.Message) {
				handled.add(msg.UUID)
				if msg.UUID != "nacked" {
					msg.Ack()
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if arrived = append(arrived, time.Now()); len(arrived) == 8 {
					msg.Ack()
				} else {
					msg.Nack()
				}
			})
			q.publish(t, names("message", 500)...)
			broker.Eventually(t, soon, func() bool { return handled.distinct() == 501 }, "the others go on")
			broker.Eventually(t, soon, func() bool { return handled.of("nacked") == 8 }, "it comes back")
			mu.Lock()
			defer mu.Unlock()
			for i, least := range []time.Duration{20, 40, 80, 160, 320, 400, 400} {
				assert.GreaterOrEqual(t, arrived[i+1].Sub(arrived[i]), least*time.Millisecond, "after nack %d", i+1)
			}
			assert.Zero(t, q.ready(t))
		})
	}
}

func TestTheFirstSubscribeReturnsErrors(t *testing.T) {
	t.Parallel()
	connection := open(t, broker.URL(t))
	refused := errors.New("no such topology")
	s, err := newSubscriber(connection, config{
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
	}, nil)
	require.NoError(t, err)
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
	_, err = s.Subscribe(t.Context(), "refused")
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
