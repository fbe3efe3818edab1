package definitions_test

import (
	"encoding/json"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/definitions"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// of returns the topology of a work queue, which change may change.
func of(queue string, change func(*topology.Config)) topology.Topology {
	config := topology.Config{Tiers: backoff.Schedule{time.Second, 5 * time.Second}.Tiers()}
	if change != nil {
		change(&config)
	}
	return topology.New(config, topology.Queue{Name: queue, Durable: true})
}

// shop is of, in a group.
func shop(queue string, change func(*topology.Config)) topology.Topology {
	return of(queue, func(c *topology.Config) {
		c.TierGroup = "shop"
		if change != nil {
			change(c)
		}
	})
}

func TestTopologyIsExported(t *testing.T) {
	all, err := definitions.Merge(of("orders", nil))
	require.NoError(t, err)
	text, err := json.Marshal(all)
	require.NoError(t, err)
	var read map[string][]map[string]any
	require.NoError(t, json.Unmarshal(text, &read))
	assert.Len(t, read["exchanges"], 4)
	require.Len(t, read["queues"], 5)
	require.Len(t, read["bindings"], 7)
	assert.Equal(t, "orders", read["queues"][0]["name"])
	assert.Equal(t, map[string]any{"source": "retry.return.any", "destination": "orders", "destination_type": "queue",
		"routing_key": "*.orders", "arguments": map[string]any{}}, read["bindings"][4])

	_, err = definitions.Merge(of("#", nil))
	assert.Error(t, err)
}

func TestMergeRefusesDifferentArguments(t *testing.T) {
	_, err := definitions.Merge(shop("orders", nil), shop("mails", nil), shop("orders", nil))
	require.NoError(t, err, "shared objects with the same arguments")
	_, err = definitions.Merge(shop("orders", nil), shop("mails", func(c *topology.Config) { c.TierArguments = amqp091.Table{"x-max-length": 10} }))
	require.ErrorContains(t, err, `queue "shop.retry.1s" is needed with different arguments`)
	assert.ErrorContains(t, err, "x-max-length=10")
	_, err = definitions.Merge(shop("orders", nil), shop("orders.dead", nil))
	require.ErrorContains(t, err, "has the name of a queue of the retry topology")
}
