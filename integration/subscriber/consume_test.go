package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
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

// RabbitMQ 3.10 answers basic.consume with an internal error, and closes the connection, when another instance declares the quorum
// queue at that moment.
func TestInstancesThatStartAtTheSameTimeConsume(t *testing.T) {
	t.Parallel()
	const rounds, instances, queues = 3, 4, 10
	for round := range rounds {
		name := broker.Name(t, fmt.Sprintf("start-%d", round))
		cleaner := broker.Channel(t)
		var connections []*subscriber.Connection
		for range instances {
			connection, err := subscriber.Open(wire.Config{URI: broker.URL(t)}, nil)
			require.NoError(t, err)
			connections = append(connections, connection)
		}
		var starting sync.WaitGroup
		for _, connection := range connections {
			s := newSubscriber(connection, config{
				Declare: func(d *subscriber.Declaration, topic string) error {
					for {
						channel, err := d.Channel()
						if err == nil {
							_, err = channel.QueueDeclare(topic, true, false, false, false, quorum)
						}
						if !refusal.IsAbsent(err) { // another instance is just declaring it
							return err
						}
					}
				},
			})
			starting.Go(func() {
				for i := range queues {
					_, err := s.Subscribe(t.Context(), fmt.Sprintf("%s-%d", name, i))
					assert.NoError(t, err)
				}
			})
		}
		starting.Wait()
		for _, connection := range connections {
			require.NoError(t, connection.Close())
		}
		for i := range queues {
			_, err := cleaner.QueueDelete(fmt.Sprintf("%s-%d", name, i), false, false, false)
			require.NoError(t, err)
		}
	}
}
