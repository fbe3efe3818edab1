package subscriber_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
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

func TestALostConnectionLosesNoMessage(t *testing.T) {
	t.Parallel()
	const all, rounds = 1000, 3
	q := newQueue(t, quorum)
	proxy, uri := broker.Proxy(t)
	var declared atomic.Int32
	connection, _, messages := q.subscribe(t, uri, config{
		Prefetch: 64, OrderKey: func(msg *message.Message) string { return msg.UUID[len(msg.UUID)-1:] },
		Declare: func(d *subscriber.Declaration, topic string) error {
			declared.Add(1)
			return q.declare(d, topic)
		},
	})
	handled := newLedger()
	var running, most, ended atomic.Int32
	handle(messages, func(msg *message.Message) {
		now := running.Add(1)
		for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
		}
		time.Sleep(time.Millisecond) // the duration of the work
		if msg.Context().Err() != nil {
			ended.Add(1)
		}
		handled.add(msg.UUID)
		running.Add(-1)
		msg.Ack()
	})
	uuids := names("message", all)
	for round := range rounds {
		q.publish(t, uuids[round*all/rounds:(round+1)*all/rounds]...)
		broker.Eventually(t, soon, func() bool { return handled.distinct() >= (2*round+1)*all/rounds/2 }, "half of them")
		proxy.Stop()
		require.NoError(t, proxy.Start())
	}
	broker.Eventually(t, soon, func() bool { return handled.distinct() == all }, "all messages are handled")
	broker.Eventually(t, soon, func() bool { return q.ready(t) == 0 && connection.Health().Subscriptions[0].InFlight == 0 }, "and acked")
	assert.EqualValues(t, rounds+1, declared.Load(), "declared once for each connection")
	assert.LessOrEqual(t, most.Load(), int32(16), "Concurrency is the bound across connections")
	assert.Zero(t, ended.Load(), "a lost connection does not end the contexts")
	assert.Less(t, len(handled.inOrder()), all+rounds*64+1, "only what was in flight comes twice")
}

func TestDeclaredAgainBeforeConsuming(t *testing.T) {
	t.Parallel()
	q := newQueue(t, classic)
	proxy, uri := broker.Proxy(t)
	var mu sync.Mutex
	var events []string
	var failing atomic.Int32
	connection, _, messages := q.subscribe(t, uri, config{
		Declare: func(d *subscriber.Declaration, topic string) error {
			mu.Lock()
			defer mu.Unlock()
			if failing.Add(-1) >= 0 {
				events = append(events, "failed")
				return errors.New("not now")
			}
			events = append(events, "declared")
			return q.declare(d, topic)
		},
	})
	handle(messages, func(msg *message.Message) {
		mu.Lock()
		events = append(events, msg.UUID)
		mu.Unlock()
		msg.Ack()
	})
	q.publish(t, "first")
	seen := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), events...)
	}
	broker.Eventually(t, soon, func() bool { return len(seen()) == 2 }, "it consumes")

	proxy.Stop()
	broker.Eventually(t, soon, func() bool { return !connection.Health().Links[0].Connected }, "it notices")
	_, err := q.channel.QueueDelete(q.name, false, false, false)
	require.NoError(t, err)
	failing.Store(2)
	require.NoError(t, proxy.Start())
	broker.Eventually(t, soon, func() bool { return connection.Health().Ready() == nil }, "it consumes again")
	assert.Contains(t, connection.Health().Subscriptions[0].LastError, "not now")
	q.publish(t, "second")
	broker.Eventually(t, soon, func() bool { return len(seen()) == 6 }, "the queue was declared again")
	assert.Equal(t, []string{"declared", "first", "failed", "failed", "declared", "second"}, seen())
}

func TestSubscribeAndCloseWhileDisconnected(t *testing.T) {
	t.Parallel()
	q := newQueue(t, classic)
	q.publish(t, "in flight")
	proxy, uri := broker.Proxy(t)
	connection, s, messages := q.subscribe(t, uri, config{})
	msg := receive(t, messages)
	proxy.Stop()
	broker.Eventually(t, soon, func() bool { return !connection.Health().Links[0].Connected }, "it notices")
	_, err := s.Subscribe(t.Context(), q.name)
	require.ErrorIs(t, err, publish.ErrNotConnected)
	require.NoError(t, msg.Context().Err(), "the handler goes on")
	assert.True(t, msg.Ack())
	begin := time.Now()
	require.NoError(t, s.Close())
	require.NoError(t, connection.Close())
	assert.Less(t, time.Since(begin), 3*time.Second)
	assert.False(t, connection.Health().Links[0].Connected)
	broker.Eventually(t, soon, func() bool { return q.ready(t) == 1 }, "the ack was lost with the connection")
}
