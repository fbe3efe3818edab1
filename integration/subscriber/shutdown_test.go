package subscriber_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// countsNacks reports whether the broker counts basic.nack towards the delivery limit of quorum queues: before 4.3 it does.
func countsNacks(t *testing.T) bool {
	t.Helper()
	version, _ := broker.Connect(t).Properties["version"].(string)
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	require.NoError(t, err, version)
	return major < 4 || major == 4 && minor < 3
}

func TestAShutdownLosesAndCountsNothingMore(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]config{
		"in the order of arrival": {Prefetch: 50},
		"with keys":               {Prefetch: 50, OrderKey: func(msg *message.Message) string { return msg.UUID }},
		"with keys that wait": {Prefetch: 50, OrderKey: func(msg *message.Message) string {
			if strings.HasSuffix(msg.UUID, "0") {
				return "busy"
			}
			return ""
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const inFlight, fetched, all = 16, 50, 116
			q := newQueue(t, quorum)
			q.publish(t, names("message", all)...)
			config.CloseTimeout = time.Minute
			_, s, messages := q.subscribe(t, broker.URL(t), config)
			handled := map[string]*message.Message{}
			for range inFlight {
				msg := receive(t, messages)
				handled[msg.UUID] = msg
			}
			broker.Eventually(t, soon, func() bool { return q.ready(t) == all-fetched }, "the broker has sent ahead")

			closed := make(chan struct{})
			go func() {
				_ = s.Close()
				close(closed)
			}()
			broker.Eventually(t, soon, func() bool { return q.ready(t) == all-inFlight }, "all that were not handed out are back")
			assert.Nil(t, broker.Receive(t, messages, "the channel is closed"), "a message was handed out after the shutdown began")
			for _, msg := range handled {
				require.NoError(t, msg.Context().Err(), "handlers go on")
				msg.Ack()
			}
			expect(t, closed, "Close returns when all are settled")

			want := int64(0)
			if countsNacks(t) {
				want = 1
			}
			content := q.content(t)
			assert.Len(t, content, all-inFlight)
			for i, uuid := range names("message", all) {
				delivery, found := content[uuid]
				assert.Equal(t, handled[uuid] == nil, found, uuid)
				if !found {
					continue
				}
				count, _ := delivery.Headers["x-delivery-count"].(int64)
				if i < fetched {
					assert.Equal(t, want, count, "%s was fetched and not handed out", uuid)
				} else {
					assert.Zero(t, count, "%s was not fetched", uuid)
					assert.False(t, delivery.Redelivered, "%s was not fetched", uuid)
				}
			}
		})
	}
}

func TestCloseGivesUpWhatIsNotSettled(t *testing.T) {
	t.Parallel()
	q := newQueue(t, quorum)
	q.publish(t, "acked in time", "acked after its context", "never settled")
	_, s, messages := q.subscribe(t, broker.URL(t), config{CloseTimeout: 300 * time.Millisecond})
	byName := map[string]*message.Message{}
	for range 3 {
		msg := receive(t, messages)
		byName[msg.UUID] = msg
	}
	var group sync.WaitGroup
	begin := time.Now()
	for range 8 { // concurrent calls all wait
		group.Go(func() {
			assert.NoError(t, s.Close())
			assert.Greater(t, time.Since(begin), 300*time.Millisecond)
		})
	}
	byName["acked in time"].Ack()
	late := byName["acked after its context"]
	expect(t, late.Context().Done(), "the context ends")
	late.Ack()
	group.Wait()
	assert.Less(t, time.Since(begin), 4*time.Second)
	require.NoError(t, s.Close(), "again")
	_, err := s.Subscribe(t.Context(), q.name)
	require.ErrorIs(t, err, subscriber.ErrClosed)
	broker.Eventually(t, soon, func() bool { return q.ready(t) == 1 }, "the broker has it back")
	assert.Contains(t, q.content(t), "never settled")
}

// A nack's pause must not delay a shutdown.
func TestAShutdownEndsThePauseOfANack(t *testing.T) {
	t.Parallel()
	q := newQueue(t, quorum)
	q.publish(t, "nacked")
	connection, s, messages := q.subscribe(t, broker.URL(t), config{NackInitial: time.Hour, CloseTimeout: time.Minute})
	receive(t, messages).Nack()
	broker.Eventually(t, soon, func() bool { return connection.Health().Subscriptions[0].InFlight == 1 }, "it keeps its place")
	begin := time.Now()
	require.NoError(t, s.Close())
	assert.Less(t, time.Since(begin), 50*time.Second, "CloseTimeout is a minute")
	assert.Contains(t, q.content(t), "nacked")
}

func TestTheEndOfSubscribesContextEndsOneSubscription(t *testing.T) {
	t.Parallel()
	first, second := newQueue(t, classic), newQueue(t, classic)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	connection := open(t, broker.URL(t))
	s, err := newSubscriber(connection, config{}, nil)
	require.NoError(t, err)
	handled := newLedger()
	entered, leave := make(chan struct{}), make(chan struct{})
	stopped := router.AddConsumerHandler("first", first.name, s, func(msg *message.Message) error {
		close(entered)
		<-leave
		handled.add(msg.UUID)
		return msg.Context().Err()
	})
	router.AddConsumerHandler("second", second.name, s, func(msg *message.Message) error {
		handled.add(msg.UUID)
		return nil
	})
	go func() { _ = router.Run(context.Background()) }()
	broker.Receive(t, router.Running(), "the router runs")
	first.publish(t, "in flight")
	broker.Receive(t, entered, "the handler is called")
	stopped.Stop()
	expect(t, stopped.Stopped(), "the handler stops")
	first.publish(t, "left in the queue")
	second.publish(t, "message")
	broker.Eventually(t, soon, func() bool { return handled.of("message") == 1 }, "the other handler goes on")
	close(leave)
	broker.Eventually(t, soon, func() bool { return len(connection.Health().Subscriptions) == 1 }, "the subscription is over")
	require.NoError(t, router.Close())
	assert.Equal(t, 1, handled.of("in flight"))
	content := first.content(t)
	assert.Len(t, content, 1, "what was in flight is acked")
	assert.Contains(t, content, "left in the queue")
}

// Watermill's router closes its subscribers while their handlers run.
func TestARouterClosesUnderLoad(t *testing.T) {
	t.Parallel()
	const all = 3000
	q := newQueue(t, quorum)
	q.publish(t, names("message", all)...)
	handled := newLedger()
	var failed atomic.Int32
	for round := 0; handled.distinct() < all; round++ {
		require.Less(t, round, 1000)
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		require.NoError(t, err)
		connection, err := subscriber.Open(wire.Config{URI: broker.URL(t)}, nil)
		require.NoError(t, err)
		s, err := newSubscriber(connection, config{Declare: q.declare}, nil)
		require.NoError(t, err)
		busy, enough := make(chan struct{}), int32(min(500, all-handled.distinct()))
		var count atomic.Int32
		router.AddConsumerHandler("handler", q.name, s, func(msg *message.Message) error {
			if count.Add(1) == enough {
				defer close(busy)
			}
			if msg.Context().Err() != nil {
				failed.Add(1)
			}
			handled.add(msg.UUID)
			return nil
		})
		go func() { _ = router.Run(context.Background()) }()
		broker.Receive(t, busy, "messages are handled")
		require.NoError(t, router.Close())
		require.NoError(t, connection.Close())
	}
	assert.Zero(t, failed.Load(), "no context ended before its handler")
	for uuid, count := range handled.count {
		assert.Equal(t, 1, count, uuid)
	}
	assert.Empty(t, q.content(t))
}
