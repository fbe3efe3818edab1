package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
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
		"has 257 bytes: AMQP allows 255": {topology.Config{Partitions: 1, Prefetch: 1},
			topology.Queue{Name: strings.Repeat("n", 249)}},
	} {
		require.ErrorContains(t, topology.New(row.config, row.work).Validate(), want)
	}
}

// TestArgumentsThatMakeGaps are refused with partitions, and only then.
func TestArgumentsThatMakeGaps(t *testing.T) {
	t.Parallel()
	const expires, full, often = "that expires is a gap", "which a full queue drops, is a gap", "delivered more often is a gap"
	for _, row := range []struct {
		arguments amqp091.Table
		want      []string // none: they are not refused
	}{
		{amqp091.Table{"x-queue-type": "classic"}, []string{"x-queue-type classic", "only quorum queues put messages back"}},
		{amqp091.Table{"x-message-ttl": 60_000}, []string{"x-message-ttl 60000", expires, "Leave it out"}},
		{amqp091.Table{"x-max-length": 100}, []string{"x-max-length 100", full, "Set x-overflow to reject-publish"}},
		{amqp091.Table{"x-max-length-bytes": 100, "x-overflow": "drop-head"}, []string{"x-max-length-bytes 100", full}},
		{amqp091.Table{"x-delivery-limit": 20}, []string{"x-delivery-limit 20", often, "it is then 1000000"}},
		{amqp091.Table{"x-delivery-limit": int64(999_999)}, []string{"x-delivery-limit 999999", often}},
		{amqp091.Table{"x-delivery-limit": -1}, []string{"x-delivery-limit -1", often}},
		{amqp091.Table{"x-delivery-limit": "20"}, []string{"x-delivery-limit 20", often}},
		{amqp091.Table{"x-message-ttl": 1, "x-max-length": 2, "x-max-length-bytes": 3, "x-delivery-limit": 4},
			[]string{"x-message-ttl 1", "x-max-length 2", "x-max-length-bytes 3", "x-delivery-limit 4"}},
		{amqp091.Table{"x-max-length": 100, "x-max-length-bytes": 100, "x-overflow": "reject-publish"}, nil},
		{amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(1_000_000)}, nil},
		{amqp091.Table{"x-delivery-limit": uint32(1_000_000)}, nil},
	} {
		work := topology.Queue{Name: "orders", Durable: true, Arguments: row.arguments}
		for _, mode := range []topology.WorkQueueMode{topology.Protect, topology.Leave} { // Leave: a queue that exists
			tiers := backoff.Schedule{time.Second}.Tiers()
			require.NoError(t, topology.New(topology.Config{Tiers: tiers, WorkQueueMode: mode}, work).Validate())
			err := topology.New(topology.Config{Partitions: 1, Prefetch: 1, WorkQueueMode: mode}, work).Validate()
			if row.want == nil {
				assert.NoError(t, err, "%v", row.arguments)
			}
			for _, part := range row.want {
				assert.ErrorContains(t, err, part)
			}
		}
	}
}
