package subscriber_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

func TestTheQueueIsDeletedUnderTheConsumer(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]amqp091.Table{"quorum": quorum, "classic": classic} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t, arguments)
			q.publish(t, "before", "in flight")
			var declared atomic.Int32
			connection, _, messages := q.subscribe(t, broker.URL(t), config{
				Declare: func(d *subscriber.Declaration, topic string) error {
					declared.Add(1)
					return q.declare(d, topic)
				},
			})
			handled := newLedger()
			entered, leave := make(chan struct{}), make(chan struct{})
			handle(messages, func(msg *message.Message) {
				handled.add(msg.UUID)
				if msg.UUID == "in flight" {
					close(entered)
					<-leave
				}
				msg.Ack()
			})
			broker.Receive(t, entered, "the handler is called")
			for i := range 2 {
				before, deleting := declared.Load(), time.Now()
				_, err := q.channel.QueueDelete(q.name, false, false, false)
				require.NoError(t, err)
				broker.Eventually(t, soon, func() bool {
					s := connection.Health().Subscriptions[0]
					return s.Consuming && declared.Load() > before // twice if the broker is still deleting a queue that it lets declare
				}, "it is declared and consumed again")
				assert.GreaterOrEqual(t, time.Since(deleting), time.Second, "the client may be deleting other queues")
				q.publish(t, fmt.Sprint("after ", i))
				broker.Eventually(t, soon, func() bool { return handled.of(fmt.Sprint("after ", i)) == 1 }, "it consumes")
			}
			close(leave)
			assert.Contains(t, connection.Health().Subscriptions[0].LastError, "the broker cancelled the consumer")
			assert.ElementsMatch(t, []string{"before", "in flight", "after 0", "after 1"}, handled.inOrder(), "no phantoms")
			broker.Eventually(t, soon, func() bool { return connection.Health().Subscriptions[0].InFlight == 0 }, "the old channel is done")
			require.NoError(t, connection.Health().Ready())
		})
	}
}

// After a loss, the subscriber declares again what it consumes, and does not consume it where that fails: a queue without
// its bindings would not get what comes back to it.
func TestAQueueThatCannotBeDeclaredAgainIsNotConsumed(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]amqp091.Table{"quorum": quorum, "classic": classic} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t, arguments)
			var declared time.Time
			var refusals atomic.Int32
			var repaired atomic.Bool
			connection, _, messages := q.subscribe(t, broker.URL(t), config{
				Declare: func(d *subscriber.Declaration, topic string) error {
					if declared.After(d.LostAt) {
						return nil
					}
					now := time.Now()
					channel, err := d.Channel()
					if err != nil {
						return err
					}
					state, err := channel.QueueDeclare(topic, true, false, false, false, q.arguments)
					if err != nil {
						return err
					}
					if !repaired.Load() && (state.Consumers > 0 || refusals.Load() > 0) {
						refusals.Add(1)
						return errors.New("the exchange is gone")
					}
					declared = now
					return nil
				},
			})
			handled := newLedger()
			handle(messages, func(msg *message.Message) {
				handled.add(msg.UUID)
				msg.Ack()
			})
			_, err := q.channel.QueueDelete(q.name, false, false, false)
			require.NoError(t, err)
			refused := func() bool { return refusals.Load() > 0 }
			broker.Eventually(t, soon, refused, "it is consumed and declared again")
			consumers := func() int {
				state, err := q.channel.QueueDeclarePassive(q.name, true, false, false, false, nil)
				require.NoError(t, err)
				return state.Consumers
			}
			broker.Eventually(t, soon, func() bool { return consumers() == 0 }, "it is not consumed")
			q.publish(t, names("after", 20)...)
			before := refusals.Load()
			broker.Eventually(t, soon, func() bool { return refusals.Load() > before+1 }, "it tries again")
			s := connection.Health().Subscriptions[0]
			assert.False(t, s.Consuming)
			assert.Contains(t, s.LastError, "the exchange is gone")
			assert.Zero(t, s.Deliveries, "before it consumes again, it declares")

			repaired.Store(true)
			broker.Eventually(t, soon, func() bool { return handled.distinct() == 20 }, "all are handled")
			assert.Len(t, handled.inOrder(), 20)
			assert.Equal(t, 1, consumers())
			require.NoError(t, connection.Health().Ready())
		})
	}
}

func TestSubscribeAndCloseWhileDisconnected(t *testing.T) {
	t.Parallel()
	q := newQueue(t, classic)
	q.publish(t, "in flight")
	proxy, uri := broker.Proxy(t)
	connection, err := subscriber.Open(wire.Config{URI: uri, ReconnectInitial: time.Hour, ReconnectMax: time.Hour}, nil)
	require.NoError(t, err)
	s := newSubscriber(connection, config{})
	messages, err := s.Subscribe(t.Context(), q.name)
	require.NoError(t, err)
	msg := receive(t, messages)
	proxy.Stop()
	broker.Eventually(t, soon, func() bool { return !connection.Health().Links[0].Connected }, "it notices")
	_, err = s.Subscribe(t.Context(), q.name)
	require.ErrorIs(t, err, publish.ErrNotConnected)
	require.NoError(t, msg.Context().Err(), "the handler goes on")
	assert.True(t, msg.Ack())
	closed := make(chan error, 2)
	go func() { closed <- s.Close(); closed <- connection.Close() }()
	for range 2 { // the next attempt to reconnect is hours away
		require.NoError(t, broker.Receive(t, closed, "Close returns"))
	}
	assert.False(t, connection.Health().Links[0].Connected)
	broker.Eventually(t, soon, func() bool { return q.ready(t) == 1 }, "the ack was lost with the connection")
}
