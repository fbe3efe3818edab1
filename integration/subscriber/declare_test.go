package subscriber_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

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
			s := newSubscriber(connection, config{
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
			})
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
