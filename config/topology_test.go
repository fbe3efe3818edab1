package config_test

import (
	"encoding/json"
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/config"
)

func TestTopologyIsPlainData(t *testing.T) {
	topology := builderOf(t).Topology("orders")
	require.NoError(t, topology.Validate())
	assert.Equal(t, []config.Exchange{
		{Name: "retry", Kind: "topic", Durable: true},
		{Name: "retry.return", Kind: "topic", Durable: true, Arguments: amqp091.Table{"alternate-exchange": "retry.orphans"}},
		{Name: "retry.orphans", Kind: "fanout", Durable: true},
	}, topology.Exchanges)
	tier := func(ms int64) amqp091.Table {
		return amqp091.Table{
			"x-queue-type": "quorum", "x-message-ttl": ms, "x-dead-letter-exchange": "retry.return",
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		}
	}
	rest := amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)}
	assert.Equal(t, []config.Queue{
		{Name: "retry.orphans", Durable: true, Arguments: rest},
		{Name: "orders.dead", Durable: true, Arguments: rest},
		{Name: "orders.retry.1s", Durable: true, Arguments: tier(1000)},
		{Name: "orders.retry.5m", Durable: true, Arguments: tier(300_000)},
	}, topology.Queues)
	assert.Equal(t, []config.Binding{
		{Exchange: "retry.orphans", Queue: "retry.orphans"},
		{Exchange: "retry", Queue: "orders.dead", Key: "dead.orders"},
		{Exchange: "retry", Queue: "orders.retry.1s", Key: "1s.orders"},
		{Exchange: "retry", Queue: "orders.retry.5m", Key: "5m.orders"},
		{Exchange: "retry.return", Queue: "orders", Key: "*.orders"},
	}, topology.Bindings)
}

func TestSharedObjectsDependOnNoOption(t *testing.T) {
	plain := builderOf(t).Topology("orders")
	other := builderOf(t, func(c *config.BuilderConfig) {
		c.QueueType, c.WorkQueue = config.Classic, config.Leave
	}).Topology("orders")
	assert.Equal(t, plain.Exchanges, other.Exchanges)
	assert.Equal(t, plain.Queues[0], other.Queues[0], "the orphans")
	assert.Equal(t, amqp091.Table{"x-queue-type": "classic"}, other.Queues[1].Arguments)
	assert.Equal(t, amqp091.Table{
		"x-queue-type": "classic", "x-message-ttl": int64(1000), "x-dead-letter-exchange": "retry.return",
	}, other.Queues[2].Arguments)
}

func TestPrefixRenamesExchangesAndQueues(t *testing.T) {
	topology := builderOf(t, func(c *config.BuilderConfig) { c.Prefix = "again" }).Topology("orders")
	assert.Equal(t, "again", topology.Exchanges[0].Name)
	assert.Equal(t, "again.return", topology.Exchanges[1].Name)
	assert.Equal(t, "again.orphans", topology.Queues[0].Name)
	assert.Equal(t, "orders.again.1s", topology.Queues[2].Name)
	assert.Equal(t, "again", topology.WorkQueue.Arguments["x-dead-letter-exchange"])
}

func TestWorkQueueProtection(t *testing.T) {
	for name, row := range map[string]struct {
		mode      config.WorkQueue
		app, want amqp091.Table
	}{
		"nothing said": {config.Protect, nil, amqp091.Table{
			"x-queue-type": "quorum", "x-delivery-limit": int64(20), "x-dead-letter-exchange": "retry", "x-dead-letter-routing-key": "dead.orders",
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		}},
		"left": {config.Leave, amqp091.Table{"x-max-length": 5}, amqp091.Table{"x-max-length": 5}},
		"what the app says holds": {
			config.Protect, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": 3, "x-overflow": "drop-head", "x-max-length": 5},
			amqp091.Table{
				"x-queue-type": "quorum", "x-delivery-limit": 3, "x-overflow": "drop-head", "x-max-length": 5,
				"x-dead-letter-exchange": "retry", "x-dead-letter-routing-key": "dead.orders",
			},
		},
		"a bound of the app's is not turned around": {
			config.Protect, amqp091.Table{"x-max-length": 5},
			amqp091.Table{
				"x-queue-type": "quorum", "x-delivery-limit": int64(20), "x-max-length": 5,
				"x-dead-letter-exchange": "retry", "x-dead-letter-routing-key": "dead.orders",
			},
		},
		"the app's own dead-lettering": {
			config.Protect, amqp091.Table{"x-dead-letter-exchange": "graveyard"},
			amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(20), "x-dead-letter-exchange": "graveyard"},
		},
		"what only classic queues can": {
			config.Protect, amqp091.Table{"x-max-priority": 9},
			amqp091.Table{
				"x-queue-type": "classic", "x-max-priority": 9, "x-dead-letter-exchange": "retry", "x-dead-letter-routing-key": "dead.orders",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			builder := builderOf(t, func(c *config.BuilderConfig) {
				c.AMQP = amqp.NewDurableQueueConfig(uri)
				c.AMQP.Queue.Arguments = row.app
				c.WorkQueue = row.mode
			})
			assert.Equal(t, config.Queue{Name: "orders", Durable: true, Arguments: row.want}, builder.Topology("orders").WorkQueue)
		})
	}
}

func TestTopologyIsPrintedAndExported(t *testing.T) {
	topology := builderOf(t).Topology("orders")
	assert.Contains(t, topology.String(), "queue     orders.retry.5m")
	assert.Contains(t, topology.String(), "x-message-ttl=300000")

	text, err := json.Marshal(topology)
	require.NoError(t, err)
	var definitions struct {
		Queues []struct {
			Name      string
			Durable   bool
			Arguments map[string]any
		}
		Bindings []struct {
			Source, Destination string
			Type                string `json:"destination_type"`
			Key                 string `json:"routing_key"`
		}
		Exchanges []struct{ Name, Type string }
	}
	require.NoError(t, json.Unmarshal(text, &definitions))
	assert.Len(t, definitions.Exchanges, 3)
	require.Len(t, definitions.Queues, 5)
	assert.Equal(t, "orders", definitions.Queues[0].Name)
	assert.Equal(t, "*.orders", definitions.Bindings[4].Key)
	assert.Equal(t, "queue", definitions.Bindings[4].Type)

	_, err = json.Marshal(builderOf(t).Topology("#"))
	assert.Error(t, err)
}

// The texts are those of RabbitMQ 3.10, 4.0 and 4.3, which agree.
func TestConflictsAreReadFromTheBrokersWords(t *testing.T) {
	for reason, want := range map[string][3]string{
		`PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'pq1' in vhost '/': received none but current is the value 'retry' of type 'longstr'`: {"x-dead-letter-exchange", "none", "retry"},
		`PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'pq2' in vhost '/': received the value '5' of type 'long' but current is none`:                 {"x-message-ttl", "5", "none"},
		`PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'it's' in vhost '/': received '6' but current is '5'`:                                          {"x-message-ttl", "6", "5"},
		`PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'`:                                            {"durable", "false", "true"},
	} {
		argument, asked, has, ok := config.ConflictOf(reason)
		require.True(t, ok, reason)
		assert.Equal(t, want, [3]string{argument, asked, has})
	}
	_, _, _, ok := config.ConflictOf("PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'pq3' in vhost '/' of queue type rabbit_quorum_queue")
	assert.False(t, ok)
}
