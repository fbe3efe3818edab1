package topology_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

var schedule = backoff.Schedule{time.Second, 5 * time.Minute, time.Second}

func of(queue string, change ...func(*topology.Config)) topology.Topology {
	c := topology.Config{Schedule: schedule}
	for _, f := range change {
		f(&c)
	}
	return topology.New(c, topology.Queue{Name: queue, Durable: true})
}

func TestTopologyIsPlainData(t *testing.T) {
	orders := of("orders")
	require.NoError(t, orders.Validate())
	assert.Equal(t, []topology.Exchange{
		{Name: "retry", Kind: "direct", Durable: true},
		{Name: "retry.return", Kind: "direct", Durable: true, Arguments: amqp091.Table{"alternate-exchange": "retry.return.any"}},
		{Name: "retry.return.any", Kind: "topic", Durable: true, Arguments: amqp091.Table{"alternate-exchange": "retry.orphans"}},
		{Name: "retry.orphans", Kind: "fanout", Durable: true},
	}, orders.Exchanges)
	tier := func(ms int64) amqp091.Table {
		return amqp091.Table{
			"x-queue-type": "quorum", "x-message-ttl": ms, "x-dead-letter-exchange": "retry.return",
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		}
	}
	rest := amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)}
	assert.Equal(t, []topology.Queue{
		{Name: "retry.orphans", Durable: true, Arguments: rest},
		{Name: "orders.dead", Durable: true, Arguments: rest},
		{Name: "orders.retry.1s", Durable: true, Arguments: tier(1000)},
		{Name: "orders.retry.5m", Durable: true, Arguments: tier(300_000)},
	}, orders.Queues)
	assert.Equal(t, []topology.Binding{
		{Exchange: "retry.orphans", Queue: "retry.orphans"},
		{Exchange: "retry", Queue: "orders.dead", Key: "dead.orders"},
		{Exchange: "retry", Queue: "orders.retry.1s", Key: "1s.orders"},
		{Exchange: "retry", Queue: "orders.retry.5m", Key: "5m.orders"},
		{Exchange: "retry.return.any", Queue: "orders", Key: "*.orders"},
		{Exchange: "retry.return", Queue: "orders", Key: "1s.orders"},
		{Exchange: "retry.return", Queue: "orders", Key: "5m.orders"},
	}, orders.Bindings)
}

func TestSharedObjectsDependOnNoOption(t *testing.T) {
	plain := of("orders")
	other := of("orders", func(c *topology.Config) { c.QueueType, c.WorkQueueMode = topology.Classic, topology.Leave })
	assert.Equal(t, plain.Exchanges, other.Exchanges)
	assert.Equal(t, plain.Queues[0], other.Queues[0], "the orphans")
	assert.Equal(t, amqp091.Table{"x-queue-type": "classic"}, other.Queues[1].Arguments)
	assert.Equal(t, amqp091.Table{
		"x-queue-type": "classic", "x-message-ttl": int64(1000), "x-dead-letter-exchange": "retry.return",
	}, other.Queues[2].Arguments)
}

func TestPrefixRenamesExchangesAndQueues(t *testing.T) {
	orders := of("orders", func(c *topology.Config) { c.Prefix = "again" })
	assert.Equal(t, "again", orders.Exchanges[0].Name)
	assert.Equal(t, "again.return", orders.Exchanges[1].Name)
	assert.Equal(t, amqp091.Table{"alternate-exchange": "again.return.any"}, orders.Exchanges[1].Arguments)
	assert.Equal(t, "again.return.any", orders.Exchanges[2].Name)
	assert.Equal(t, amqp091.Table{"alternate-exchange": "again.orphans"}, orders.Exchanges[2].Arguments)
	assert.Equal(t, "again.orphans", orders.Queues[0].Name)
	assert.Equal(t, "orders.again.1s", orders.Queues[2].Name)
	assert.Equal(t, "again", orders.WorkQueue.Arguments["x-dead-letter-exchange"])
}

func TestWorkQueueProtection(t *testing.T) {
	for name, row := range map[string]struct {
		mode      topology.WorkQueueMode
		app, want amqp091.Table
	}{
		"no arguments": {topology.Protect, nil, amqp091.Table{
			"x-queue-type": "quorum", "x-delivery-limit": int64(20), "x-dead-letter-exchange": "retry", "x-dead-letter-routing-key": "dead.orders",
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		}},
		"left": {topology.Leave, amqp091.Table{"x-max-length": 5}, amqp091.Table{"x-max-length": 5}},
		"arguments of the app are kept": {
			topology.Protect, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": 3, "x-overflow": "drop-head", "x-max-length": 5},
			amqp091.Table{
				"x-queue-type": "quorum", "x-delivery-limit": 3, "x-overflow": "drop-head", "x-max-length": 5,
				"x-dead-letter-exchange": "retry", "x-dead-letter-routing-key": "dead.orders",
			},
		},
		"a length limit of the app keeps its overflow": {
			topology.Protect, amqp091.Table{"x-max-length": 5},
			amqp091.Table{
				"x-queue-type": "quorum", "x-delivery-limit": int64(20), "x-max-length": 5,
				"x-dead-letter-exchange": "retry", "x-dead-letter-routing-key": "dead.orders",
			},
		},
		"the app's own dead-lettering": {
			topology.Protect, amqp091.Table{"x-dead-letter-exchange": "graveyard"},
			amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(20), "x-dead-letter-exchange": "graveyard"},
		},
		"an argument that only classic queues have": {
			topology.Protect, amqp091.Table{"x-max-priority": 9},
			amqp091.Table{
				"x-queue-type": "classic", "x-max-priority": 9, "x-dead-letter-exchange": "retry", "x-dead-letter-routing-key": "dead.orders",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			app := topology.Queue{Name: "orders", Durable: true, Arguments: row.app}
			before := maps.Clone(row.app)
			work := topology.New(topology.Config{Schedule: schedule, WorkQueueMode: row.mode}, app).WorkQueue
			assert.Equal(t, topology.Queue{Name: "orders", Durable: true, Arguments: row.want}, work)
			assert.Equal(t, before, row.app, "New does not change the app's arguments")
		})
	}
}

func TestTopologyIsPrintedAndExported(t *testing.T) {
	orders := of("orders")
	assert.Contains(t, orders.String(), "queue     orders.retry.5m")
	assert.Contains(t, orders.String(), "x-message-ttl=300000")

	text, err := json.Marshal(orders)
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
	assert.Len(t, definitions.Exchanges, 4)
	require.Len(t, definitions.Queues, 5)
	require.Len(t, definitions.Bindings, 7)
	assert.Equal(t, "orders", definitions.Queues[0].Name)
	assert.Equal(t, "*.orders", definitions.Bindings[4].Key)
	assert.Equal(t, "queue", definitions.Bindings[4].Type)

	_, err = json.Marshal(of("#"))
	assert.Error(t, err)
}

func TestQueueNamesThatAreRefused(t *testing.T) {
	for name, want := range map[string]string{
		"":                       "no name",
		"orders.*":               "patterns",
		"#":                      "patterns",
		"orders.dead":            "the name of a queue",
		"orders.retry.5m":        "the name of a queue",
		"retry.orphans":          "the name of a queue",
		"retry":                  "the name of the exchange",
		"amq.orders":             "reserved for the broker",
		strings.Repeat("q", 247): "AMQP allows 255",
	} {
		assert.ErrorContains(t, of(name).Validate(), want, name)
		assert.ErrorContains(t, of(name).Declare(nil), want, "refused before the broker is asked")
	}
	for _, name := range []string{"orders", "sales.orders", "orders.retry", "orders.retry.often", "deadline", "a*b", strings.Repeat("q", 246)} {
		assert.NoError(t, of(name).Validate(), name)
	}
}

func TestInvalidConfigIsReportedByTheTopology(t *testing.T) {
	for name, c := range map[string]topology.Config{
		"Schedule":                 {},
		"Prefix is":                {Schedule: schedule, Prefix: "a.*"},
		`QueueType is "lazy"`:      {Schedule: schedule, QueueType: "lazy"},
		`WorkQueueMode is "maybe"`: {Schedule: schedule, WorkQueueMode: "maybe"},
	} {
		broken := topology.New(c, topology.Queue{Name: "orders", Durable: true})
		assert.ErrorContains(t, broken.Validate(), name)
		assert.ErrorContains(t, broken.Declare(nil), name)
		assert.ErrorContains(t, broken.DeclareRetry(nil), name)
		assert.ErrorContains(t, broken.Redeclare(nil), name)
		assert.ErrorContains(t, broken.Verify(nil), name)
		assert.NotEmpty(t, broken.String())
	}
}

// TestTopologyHasTheDocumentedSize: docs/operations.md has formulas for W work queues and T distinct delays.
func TestTopologyHasTheDocumentedSize(t *testing.T) {
	works := []string{"orders", "invoices", "parcels"}
	exchanges, queues, bindings := map[string]bool{}, map[string]bool{}, map[topology.Binding]bool{}
	for _, work := range works {
		objects := of(work)
		for _, e := range objects.Exchanges {
			exchanges[e.Name] = true
		}
		for _, q := range append(objects.Queues, objects.WorkQueue) {
			queues[q.Name] = true
		}
		for _, b := range objects.Bindings {
			bindings[b] = true
		}
	}
	w, tiers := len(works), len(schedule.Tiers())
	assert.Len(t, exchanges, 4)
	assert.Len(t, queues, w*(tiers+2)+1)
	assert.Len(t, bindings, w*(2*tiers+2)+1)
}
