package subscriber_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
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

// After an internal error of the broker, Subscribe tries again. The other subscriptions of the connection do, too, and the connection may
// be lost once more because of one of them: then what Subscribe gets is another error.
func TestSubscribeTriesAgainWhereTheConnectionIsLostMeanwhile(t *testing.T) {
	t.Parallel()
	q := newQueue(t, classic)
	connection, err := subscriber.Open(wire.Config{URI: broker.URL(t)}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, connection.Close()) })
	var calls atomic.Int32
	s, err := newSubscriber(connection, config{Declare: func(d subscriber.Declaration, topic string) error {
		switch calls.Add(1) {
		case 1:
			return &amqp091.Error{Code: amqp091.InternalError, Reason: "INTERNAL_ERROR", Server: true}
		case 2:
			err := d.Channel.ExchangeDeclare(topic, "no-such-type", false, false, false, false, nil) // closes the connection
			assert.Error(t, err)
			return errors.New("the connection was lost")
		default:
			return q.declare(d, topic)
		}
	}}, nil)
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), q.name)
	require.NoError(t, err)
	assert.EqualValues(t, 3, calls.Load())
	_, err = s.Subscribe(t.Context(), q.name)
	require.NoError(t, err)
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
			s, err := newSubscriber(connection, config{
				Declare: func(d subscriber.Declaration, topic string) error {
					for channel := d.Channel; ; {
						_, err := channel.QueueDeclare(topic, true, false, false, false, quorum)
						if !refusal.IsAbsent(err) { // another instance is just declaring it
							return err
						}
						if channel, err = d.Broker.OpenChannel(); err != nil {
							return err
						}
					}
				},
			}, nil)
			require.NoError(t, err)
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
