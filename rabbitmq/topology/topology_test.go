package topology_test

import (
	"fmt"
	"maps"
	"slices"
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
	c := topology.Config{Tiers: schedule.Tiers()}
	for _, f := range change {
		f(&c)
	}
	return topology.New(c, topology.Queue{Name: queue, Durable: true})
}

// existing is the topology of a work queue that exists with these arguments.
func existing(arguments amqp091.Table, change ...func(*topology.Config)) topology.Topology {
	c := topology.Config{Tiers: schedule.Tiers(), WorkQueueMode: topology.Leave}
	for _, f := range change {
		f(&c)
	}
	return topology.New(c, topology.Queue{Name: "orders", Durable: true, Arguments: arguments})
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
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-queue-leader-locator": "balanced",
		}
	}
	rest := amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000), "x-queue-leader-locator": "balanced"}
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

// The names that are not those of the app have the prefix, also where they are arguments and in bindings.
func TestPrefixReplacesRetryInEveryName(t *testing.T) {
	for name, change := range map[string]func(*topology.Config){
		"own tiers":  func(*topology.Config) {},
		"a group":    func(c *topology.Config) { c.TierGroup = "shop" },
		"partitions": func(c *topology.Config) { c.Tiers, c.Partitions, c.Prefetch = nil, 2, 5 },
	} {
		text := func(prefix string) string {
			orders := of("orders", change, func(c *topology.Config) { c.Prefix = prefix })
			require.NoError(t, orders.Validate(), name)
			return fmt.Sprint(orders.Exchanges, orders.Queues, orders.Bindings, orders.WorkQueue)
		}
		assert.Equal(t, strings.ReplaceAll(text("retry"), "retry", "again"), text("again"), name)
	}
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
			work := topology.New(topology.Config{Tiers: schedule.Tiers(), WorkQueueMode: row.mode}, app).WorkQueue
			assert.Equal(t, topology.Queue{Name: "orders", Durable: true, Arguments: row.want}, work)
			assert.Equal(t, before, row.app, "New does not change the app's arguments")
		})
	}
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
	long := of(strings.Repeat("q", 250), func(c *topology.Config) { c.TierGroup = "shop" })
	assert.ErrorContains(t, long.Validate(), "AMQP allows 255")
	for _, name := range []string{"orders", "sales.orders", "orders.retry", "orders.retry.often", "deadline", "a*b", strings.Repeat("q", 246)} {
		assert.NoError(t, of(name).Validate(), name)
	}
}

func TestInvalidConfigIsReportedByTheTopology(t *testing.T) {
	for name, c := range map[string]topology.Config{
		"Tiers is empty":           {},
		"Prefix is":                {Tiers: schedule.Tiers(), Prefix: "a.*"},
		"reserved for the broker":  {Tiers: schedule.Tiers(), Prefix: "amq.retry"},
		`QueueType is "lazy"`:      {Tiers: schedule.Tiers(), QueueType: "lazy"},
		`WorkQueueMode is "maybe"`: {Tiers: schedule.Tiers(), WorkQueueMode: "maybe"},
		`Prefix is "a b*#", of 5 bytes: it must have at most 244, so that "<prefix>.return.any" fits into 255, and only the characters A-Z, a-z, 0-9, -, _, . and :`: {
			Tiers: schedule.Tiers(), Prefix: "a b*#",
		},
		`of 245 bytes: it must have at most 244`:                                            {Tiers: schedule.Tiers(), Prefix: strings.Repeat("p", 245)},
		`TierGroup is "a b", of 3 bytes: it must have at most 242`:                          {Tiers: schedule.Tiers(), TierGroup: "a b"},
		`TierGroup is "amq.shop": names that begin with "amq." are reserved for the broker`: {Tiers: schedule.Tiers(), TierGroup: "amq.shop"},
		`TierGroup is "retry.orphans": it has the name of a part of the retry topology`:     {Tiers: schedule.Tiers(), TierGroup: "retry.orphans"},
		`TierGroup is "shop.dead": it has the name of a part of the retry topology`:         {Tiers: schedule.Tiers(), TierGroup: "shop.dead"},
		`TierGroup is "shop.retry.5s": it has the name of a part of the retry topology`:     {Tiers: schedule.Tiers(), TierGroup: "shop.retry.5s"},
		`of 243 bytes: it must have at most 242`:                                            {Tiers: schedule.Tiers(), TierGroup: strings.Repeat("g", 243)},
	} {
		broken := topology.New(c, topology.Queue{Name: "orders", Durable: true})
		assert.ErrorContains(t, broken.Validate(), name)
		assert.ErrorContains(t, broken.Declare(nil), name)
		assert.ErrorContains(t, broken.DeclareRetry(nil), name)
		assert.ErrorContains(t, broken.Verify(nil), name)
	}
}

// TestTopologyHasTheDocumentedSize: the package documentation has formulas for W work queues and T distinct delays.
func TestTopologyHasTheDocumentedSize(t *testing.T) {
	const w, tiers = 3, 2
	for name, row := range map[string]struct {
		group                       string
		mode                        topology.WorkQueueMode
		exchanges, queues, bindings int
	}{
		"own tiers":            {"", topology.Protect, 4, w*(tiers+2) + 1, w*(2*tiers+2) + 1},
		"a group":              {"shop", topology.Protect, 4 + 2, tiers + 2*w + 1, tiers + 3*w + 1},
		"a group with inboxes": {"shop", topology.Leave, 4 + 2, tiers + 3*w + 1, tiers + 5*w + 1},
	} {
		exchanges, queues, bindings := map[string]bool{}, map[string]bool{}, map[topology.Binding]bool{}
		for _, work := range []string{"orders", "invoices", "parcels"} {
			objects := of(work, func(c *topology.Config) { c.TierGroup, c.WorkQueueMode = row.group, row.mode })
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
		assert.Equal(t, []int{row.exchanges, row.queues, row.bindings}, []int{len(exchanges), len(queues), len(bindings)}, name)
	}
}

func TestGroupIsPlainData(t *testing.T) {
	group := func(c *topology.Config) { c.TierGroup = "shop" }
	orders, mails := of("orders", group), of("mails", group)
	require.NoError(t, orders.Validate())
	assert.Equal(t, "shop.retry", orders.Exchanges[0].Name)
	assert.Equal(t, "retry", of("orders").Exchanges[0].Name)
	assert.Equal(t, []topology.Exchange{
		{Name: "shop.retry", Kind: "topic", Durable: true},
		{Name: "shop.retry.return", Kind: "topic", Durable: true, Arguments: amqp091.Table{"alternate-exchange": "retry.return.any"}},
	}, orders.Exchanges[:2])
	assert.Equal(t, of("orders").Exchanges, orders.Exchanges[2:], "the others do not depend on the layout")
	assert.Equal(t, []topology.Binding{
		{Exchange: "retry.orphans", Queue: "retry.orphans"},
		{Exchange: "retry", Queue: "orders.dead", Key: "dead.orders"},
		{Exchange: "shop.retry", Queue: "shop.retry.1s", Key: "1s.#"},
		{Exchange: "shop.retry", Queue: "shop.retry.5m", Key: "5m.#"},
		{Exchange: "retry.return.any", Queue: "orders", Key: "*.orders"},
		{Exchange: "shop.retry.return", Queue: "orders", Key: "member.orders"},
	}, orders.Bindings)
	assert.Equal(t, orders.Queues[2:], mails.Queues[2:], "the tiers are shared")
	assert.Equal(t, "shop.retry.return", orders.Queues[2].Arguments["x-dead-letter-exchange"])
	assert.ErrorContains(t, of("shop", group).Validate(), `TierGroup "shop" has the name of the work queue`)
}

// A work queue that may not take a message has an inbox, which takes it out of the group's tiers.
func TestInboxOfAGroup(t *testing.T) {
	group := func(c *topology.Config) { c.TierGroup = "shop" }
	for name, row := range map[string]struct {
		existing amqp091.Table
		has      bool
	}{
		"quorum":                    {amqp091.Table{"x-queue-type": "quorum", "x-overflow": "reject-publish"}, false},
		"classic":                   {nil, true},
		"classic by name":           {amqp091.Table{"x-queue-type": "classic"}, true},
		"quorum with a limit":       {amqp091.Table{"x-queue-type": "quorum", "x-max-length": 10}, true},
		"quorum with a byte limit":  {amqp091.Table{"x-queue-type": "quorum", "x-max-length-bytes": 10}, true},
		"a type of a later version": {amqp091.Table{"x-queue-type": "jms"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			orders := existing(row.existing, group)
			require.NoError(t, orders.Validate())
			has := slices.ContainsFunc(orders.Queues, func(q topology.Queue) bool { return q.Name == "orders.retry.inbox" })
			if assert.Equal(t, row.has, has); !has {
				return
			}
			assert.Equal(t, []topology.Binding{
				{Exchange: "retry.return.any", Queue: "orders", Key: "*.orders"},
				{Exchange: "shop.retry.return", Queue: "orders", Key: "member.orders"},
				{Exchange: "retry.return", Queue: "orders", Key: "inbox.orders"},
				{Exchange: "shop.retry.return", Queue: "orders.retry.inbox", Key: "*.orders"},
			}, orders.Bindings[len(orders.Bindings)-4:])
		})
	}
}

func TestPartitions(t *testing.T) {
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
			topology.Queue{Name: strings.Repeat("n", 243)}},
	} {
		require.ErrorContains(t, topology.New(row.config, row.work).Validate(), want)
	}
}

// TestArgumentsThatMakeGaps are refused with partitions, and only then.
func TestArgumentsThatMakeGaps(t *testing.T) {
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
