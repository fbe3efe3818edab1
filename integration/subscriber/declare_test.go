package subscriber_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
)

// A memory declares a queue once for each connection, and again when it may be gone.
type memory struct {
	queue *queue

	mu         sync.Mutex
	connection uint64
	at         time.Time
	declared   int
	calls      []subscriber.Declaration
}

func (m *memory) declare(d subscriber.Declaration, topic string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, d)
	if m.connection == d.Broker.Number() && m.at.After(d.LostAt) {
		return nil
	}
	m.connection, m.at = d.Broker.Number(), time.Now()
	m.declared++
	return m.queue.declare(d, topic)
}

func (m *memory) state() (declared int, calls []subscriber.Declaration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.declared, m.calls
}

func consuming(connection *subscriber.Connection, subscriptions int) bool {
	h := connection.Health()
	for _, s := range h.Subscriptions {
		if !s.Consuming {
			return false
		}
	}
	return h.Links[0].Connected && len(h.Subscriptions) == subscriptions
}

func TestWhatADeclarationMayUse(t *testing.T) {
	t.Parallel()
	const subscriptions = 4
	q := newQueue(t, classic)
	m := &memory{queue: q}
	proxy, uri := broker.Proxy(t)
	connection, s, messages := q.subscribe(t, uri, config{Declare: m.declare})
	for range subscriptions - 1 {
		_, err := s.Subscribe(t.Context(), q.name)
		require.NoError(t, err)
	}
	declared, calls := m.state()
	assert.Equal(t, 1, declared)
	require.Len(t, calls, subscriptions)
	for _, call := range calls {
		assert.Equal(t, calls[0].Broker.Number(), call.Broker.Number())
		assert.Zero(t, call.LostAt)
		assert.Equal(t, broker.Connect(t).Properties["version"], call.Broker.Version())
		assert.True(t, call.Channel.IsClosed(), "it is closed when Declare returns")
	}
	channel, err := calls[0].Broker.OpenChannel()
	require.NoError(t, err, "after Declare has returned")
	require.NoError(t, channel.Close())

	_, err = q.channel.QueueDelete(q.name, false, false, false)
	require.NoError(t, err)
	broker.Eventually(t, soon, func() bool {
		declared, calls = m.state()
		return len(calls) >= 2*subscriptions && consuming(connection, subscriptions)
	}, "all consume again")
	assert.GreaterOrEqual(t, declared, 2)
	for _, call := range calls[subscriptions:] {
		assert.Equal(t, calls[0].Broker.Number(), call.Broker.Number())
		assert.False(t, call.LostAt.IsZero())
	}

	before := len(calls)
	proxy.Stop()
	require.NoError(t, proxy.Start())
	broker.Eventually(t, soon, func() bool {
		_, calls = m.state()
		return len(calls) >= before+subscriptions && consuming(connection, subscriptions)
	}, "all consume over the next connection")
	last := calls[len(calls)-1]
	assert.Greater(t, last.Broker.Number(), calls[0].Broker.Number())
	assert.Zero(t, last.LostAt, "nothing is lost on a new connection")
	_, err = calls[0].Broker.OpenChannel()
	require.Error(t, err, "the connection is lost")
	_ = messages
}

// TestADeletedQueueIsDeclaredAgainAfterAPause: the clients that delete it may still be deleting.
func TestADeletedQueueIsDeclaredAgainAfterAPause(t *testing.T) {
	t.Parallel()
	q := newQueue(t, quorum)
	declared := make(chan time.Time, 100)
	q.subscribe(t, broker.URL(t), config{Declare: func(d subscriber.Declaration, topic string) error {
		declared <- time.Now()
		return q.declare(d, topic)
	}})
	broker.Receive(t, declared, "the queue is declared")
	deleting := time.Now()
	_, err := q.channel.QueueDelete(q.name, false, false, false)
	require.NoError(t, err)
	again := broker.Receive(t, declared, "the queue is declared again")
	assert.GreaterOrEqual(t, again.Sub(deleting), time.Second)
}

// TestAMemoryThatIsOutdated: the queue was deleted while no subscription consumed it.
func TestAMemoryThatIsOutdated(t *testing.T) {
	t.Parallel()
	q := newQueue(t, classic)
	m := &memory{queue: q}
	s, err := newSubscriber(open(t, broker.URL(t)), config{Declare: m.declare}, nil)
	require.NoError(t, err)
	remove := func() {
		t.Helper()
		_, err := q.channel.QueueDelete(q.name, false, false, false)
		require.NoError(t, err)
	}
	require.NoError(t, s.SubscribeInitialize(q.name))
	remove()
	require.NoError(t, s.SubscribeInitialize(q.name))
	q.publish(t, "first")
	remove()
	messages, err := s.Subscribe(t.Context(), q.name)
	require.NoError(t, err)
	q.publish(t, "second")
	msg := receive(t, messages)
	assert.Equal(t, "second", msg.UUID)
	msg.Ack()
}
