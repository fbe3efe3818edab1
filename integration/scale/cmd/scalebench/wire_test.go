package main

import (
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

// TestWireCountsWhatIsDeclared: passive declarations and other methods do not count.
func TestWireCountsWhatIsDeclared(t *testing.T) {
	t.Parallel()
	var w wire
	connection, err := amqp091.DialConfig(broker.URL(t), amqp091.Config{Dial: w.dial})
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	channel, err := connection.Channel()
	require.NoError(t, err)
	first, second := broker.Name(t, "wire"), broker.Name(t, "wire")
	for _, queue := range []string{first, second, second} {
		_, err := channel.QueueDeclare(queue, true, false, false, false, nil)
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = channel.QueueDelete(queue, false, false, false) })
		_, err = channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		require.NoError(t, err)
	}
	exchange := broker.Name(t, "wire")
	require.NoError(t, channel.ExchangeDeclare(exchange, amqp091.ExchangeDirect, false, true, false, false, nil))
	require.NoError(t, channel.ExchangeDeclarePassive(exchange, amqp091.ExchangeDirect, false, true, false, false, nil))
	require.NoError(t, channel.QueueBind(first, "key", exchange, false, nil))
	most, all := w.counts()
	require.Equal(t, 2, most, "queue.declare of the second queue")
	require.Equal(t, 5, all, "three queues, an exchange, a binding")
}
