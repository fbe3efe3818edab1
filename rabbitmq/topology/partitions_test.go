package topology_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

func TestPartitions(t *testing.T) {
	t.Parallel()
	work := topology.Queue{Name: "orders", Durable: true}
	made := topology.New(topology.Config{Partitions: 3, Prefetch: 512}, work)
	require.NoError(t, made.Validate())
	assert.Equal(t, true, made.WorkQueue.Arguments["x-single-active-consumer"])
	limits := map[string]any{}
	for _, queue := range made.Queues {
		if queue.Arguments["x-single-active-consumer"] == true {
			limits[queue.Name] = queue.Arguments["x-delivery-limit"]
			assert.Equal(t, "dead.orders", queue.Arguments["x-dead-letter-routing-key"])
		}
	}
	assert.Equal(t, map[string]any{"orders.order.0": int64(3_000_512), "orders.order.1": int64(3_000_512),
		"orders.order.2": int64(3_000_512)}, limits)
	assert.Contains(t, made.Bindings, topology.Binding{Exchange: "orders.order", Queue: "orders.order.2", Key: "2"})
	assert.Equal(t, "orders", made.Bindings[len(made.Bindings)-1].Queue, "the work queue's are the last")

	for want, row := range map[string]struct {
		config topology.Config
		work   topology.Queue
	}{
		"Partitions is 257: it must be between 0 (none) and 256": {topology.Config{Partitions: 257, Prefetch: 1}, work},
		"Prefetch is 0: with Partitions it must be between 1":    {topology.Config{Partitions: 1}, work},
		"only quorum queues put messages back in their order": {topology.Config{Partitions: 1, Prefetch: 1},
			topology.Queue{Name: "orders", Arguments: amqp091.Table{"x-queue-type": "classic"}}},
		"has 257 bytes: AMQP allows 255": {topology.Config{Partitions: 1, Prefetch: 1},
			topology.Queue{Name: strings.Repeat("n", 249)}},
	} {
		require.ErrorContains(t, topology.New(row.config, row.work).Validate(), want)
	}
}
