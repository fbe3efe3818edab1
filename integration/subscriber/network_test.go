package subscriber_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

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
