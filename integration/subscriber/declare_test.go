package subscriber_test

import (
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

// TestAMemoryThatIsOutdated: the queue was deleted while no subscription consumed it. Declare declares it once for each
// connection, and again when it may be gone.
func TestAMemoryThatIsOutdated(t *testing.T) {
	t.Parallel()
	q := newQueue(t, classic)
	var connection uint64
	var at time.Time
	s, err := newSubscriber(open(t, broker.URL(t)), config{Declare: func(d *subscriber.Declaration, topic string) error {
		if connection == d.Broker.Number() && at.After(d.LostAt) {
			return nil
		}
		connection, at = d.Broker.Number(), time.Now()
		return q.declare(d, topic)
	}}, nil)
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
	s, err := newSubscriber(connection, config{Declare: func(d *subscriber.Declaration, topic string) error {
		switch calls.Add(1) {
		case 1:
			return &amqp091.Error{Code: amqp091.InternalError, Reason: "INTERNAL_ERROR", Server: true}
		case 2:
			channel, err := d.Channel()
			assert.NoError(t, err)
			err = channel.ExchangeDeclare(topic, "no-such-type", false, false, false, false, nil) // closes the connection
			assert.Error(t, err)
			return fmt.Errorf("declare: %w", amqp091.ErrClosed)
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
