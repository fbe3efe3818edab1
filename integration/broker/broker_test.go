package broker_test

import (
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

func TestProxyConnectsToTheBroker(t *testing.T) {
	name := broker.Name(t, "probe")
	broker.Clean(t, name)
	proxy, uri := broker.Proxy(t)
	connection, err := amqp091.Dial(uri)
	require.NoError(t, err)
	channel, err := connection.Channel()
	require.NoError(t, err)
	_, err = channel.QueueDeclare(name, true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)

	closed := connection.NotifyClose(make(chan *amqp091.Error, 1))
	proxy.Stop()
	require.NotNil(t, <-closed)
	_, err = amqp091.Dial(uri)
	require.Error(t, err, "the broker must be unreachable")
	require.NoError(t, proxy.Start())
	connection, err = amqp091.Dial(uri)
	require.NoError(t, err)
	require.NoError(t, connection.Close())
}
