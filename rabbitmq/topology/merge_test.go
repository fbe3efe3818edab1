package topology_test

import (
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

func TestMergeRefusesDifferentArguments(t *testing.T) {
	of := func(queue string, change func(*topology.Config)) topology.Topology {
		config := topology.Config{Tiers: backoff.Schedule{time.Second}.Tiers(), TierGroup: "shop"}
		if change != nil {
			change(&config)
		}
		return topology.New(config, topology.Queue{Name: queue, Durable: true})
	}
	_, err := topology.Merge(of("orders", nil), of("mails", nil), of("orders", nil))
	require.NoError(t, err, "shared objects with the same arguments")
	_, err = topology.Merge(of("orders", nil), of("mails", func(c *topology.Config) { c.TierArguments = amqp091.Table{"x-max-length": 10} }))
	require.ErrorContains(t, err, `queue "shop.retry.1s" is needed with different arguments`)
	assert.ErrorContains(t, err, "x-max-length=10")
	_, err = topology.Merge(of("orders", nil), of("orders.dead", nil))
	require.ErrorContains(t, err, "has the name of a queue of the retry topology")
}
