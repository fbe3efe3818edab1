package door

import (
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// A copy finds its tier also while its work queue is gone, and that queue stays the app's.
func TestATierIsDeclaredAgainWithoutItsWorkQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := model.New(model.Config{})
		defer broker.Stop()
		connection, err := amqp091.DialConfig("amqp://guest:guest@model:5672/", amqp091.Config{Dial: broker.Dial})
		require.NoError(t, err)
		defer connection.Close()
		channel, err := connection.Channel()
		require.NoError(t, err)
		orders := topology.New(topology.Config{Tiers: []backoff.Tier{backoff.Tier(time.Second)}}, topology.Queue{Name: "orders", Durable: true})
		require.NoError(t, (&core{prefix: "retry"}).redeclare(orders)(channel))
		assert.ElementsMatch(t, []string{"orders.retry.1s", "orders.dead", "retry.orphans"}, broker.Queues())
		assert.Equal(t, 1, broker.Publish("retry", "1s.orders", amqp091.Publishing{}))
	})
}
