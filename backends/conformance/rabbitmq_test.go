package conformance

import (
	"testing"

	amqpv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends"
	"github.com/tieredretry/watermill-retry/config"
)

// cleanRabbitMQ removes what an app has on the broker, which may be somebody's own.
func cleanRabbitMQ(t *testing.T, uri string, app backends.App, topics []string) {
	t.Helper()
	connection, err := amqp091.Dial(uri)
	require.NoError(t, err)
	defer func() { _ = connection.Close() }()
	rabbit, err := config.NewBuilder(config.BuilderConfig{
		AMQP:     amqpv2.NewDurablePubSubConfig(uri, amqpv2.GenerateQueueNameTopicNameWithSuffix(app.Group)),
		Schedule: app.Schedule, Prefix: app.Prefix,
	})
	require.NoError(t, err)
	channel, err := connection.Channel()
	require.NoError(t, err)
	for _, topic := range topics {
		topology := rabbit.Topology(topic)
		for _, queue := range append(topology.Queues, topology.WorkQueue) {
			_, err := channel.QueueDelete(queue.Name, false, false, false)
			require.NoError(t, err)
		}
		for _, exchange := range topology.Exchanges {
			require.NoError(t, channel.ExchangeDelete(exchange.Name, false, false))
		}
		require.NoError(t, channel.ExchangeDelete(topic, false, false))
	}
}
