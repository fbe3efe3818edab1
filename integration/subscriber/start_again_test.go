package subscriber_test

import (
	"errors"
	"sync/atomic"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

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
