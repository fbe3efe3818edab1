package deadletter_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

const modelURI = "amqp://guest:guest@model:5672/"

// A board is a broker with work queues, and a store of its queues.
type board struct {
	t       *testing.T
	broker  *model.Broker
	channel *amqp091.Channel
	store   *deadletter.Store
}

// onBoard runs a test in virtual time. The management API is read over the network, from a server outside of the bubble.
func onBoard(t *testing.T, test func(*testing.T, board)) {
	t.Parallel()
	var broker *model.Broker
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		broker.Management().ServeHTTP(w, r)
	}))
	defer server.Close()
	synctest.Test(t, func(t *testing.T) {
		broker = model.New(model.Config{})
		defer broker.Stop()
		own := amqp091.Config{Dial: broker.Dial, Heartbeat: time.Hour}
		connection, err := amqp091.DialConfig(modelURI, own)
		require.NoError(t, err)
		defer connection.Close()
		channel, err := connection.Channel()
		require.NoError(t, err)
		store, err := deadletter.Open(
			deadletter.Config{URI: modelURI, Prefix: "retry", AMQP: &own, Management: server.URL}, nil)
		require.NoError(t, err)
		defer store.Close()
		test(t, board{t, broker, channel, store})
	})
}

// topologyOf returns the topology of a work queue, with tiers of its own where the group is empty. With arguments the
// work queue exists with these.
func topologyOf(queue, group string, arguments amqp091.Table, tiers ...time.Duration) topology.Topology {
	config := topology.Config{Prefix: "retry", Tiers: backoff.Schedule(tiers).Tiers(), TierGroup: group}
	if arguments != nil {
		config.WorkQueueMode = topology.Leave
	}
	return topology.New(config, topology.Queue{Name: queue, Durable: true, Arguments: arguments})
}

func (b board) declare(topologies ...topology.Topology) {
	b.t.Helper()
	for _, t := range topologies {
		require.NoError(b.t, t.Declare(b.channel))
	}
}

// publish publishes messages, each of which a queue takes.
func (b board) publish(exchange, key string, messages int) {
	b.t.Helper()
	for range messages {
		require.Equal(b.t, 1, b.broker.Publish(exchange, key, amqp091.Publishing{}), "%s %s", exchange, key)
	}
}

// retired lists the tiers of a work queue, those that are retired with a "!".
func retired(w letters.WorkQueue) (tiers []string) {
	for _, tier := range w.Tiers {
		word := backoff.Tier(tier.Delay).String()
		if tier.Retired {
			word += "!"
		}
		if tier.Group != "" {
			word += " shared"
		}
		tiers = append(tiers, word)
	}
	return tiers
}

func TestStatus(t *testing.T) {
	onBoard(t, func(t *testing.T, b board) {
		classic := amqp091.Table{"x-queue-type": "classic"}
		orders := topologyOf("orders", "", nil, time.Hour, 2*time.Hour)
		b.declare(orders, topologyOf("lost", "", nil, time.Hour), topologyOf("gone", "", nil, time.Hour),
			topologyOf("quiet", "shop", nil, time.Hour), topologyOf("last", "left", nil, time.Hour),
			topologyOf("classic", "shop", classic, time.Hour),
			topologyOf("mails", "orders", nil, 3*time.Hour)) // an app whose group has the name of another app's work queue
		b.publish(orders.Exchanges[0].Name, "1h.orders", 3)
		b.publish("retry", "1h.gone", 1)
		b.publish("retry", "dead.orders", 2)
		b.publish("retry.orphans", "1h.x", 1)
		b.publish("", "orders", 2)
		for _, queue := range []string{"lost", "gone", "gone.dead", "last", "last.dead"} {
			b.broker.DeleteQueue(queue, false)
		}
		require.NoError(t, b.channel.QueueUnbind("orders.retry.2h", "2h.orders", "retry", nil))
		require.NoError(t, b.channel.Qos(1, 0, false))
		deliveries, err := b.channel.Consume("orders", "", false, false, false, false, nil)
		require.NoError(t, err)
		<-deliveries

		status, err := b.store.Status(t.Context())
		require.NoError(t, err)
		find := func(name string) letters.WorkQueue {
			t.Helper()
			at := slices.IndexFunc(status.Queues, func(w letters.WorkQueue) bool { return w.Name == name })
			require.GreaterOrEqual(t, at, 0, "%s is not in the status", name)
			return status.Queues[at]
		}
		w := find("orders")
		assert.Equal(t, letters.Depth{Queue: "orders", Messages: 2, Ready: 1, Unacked: 1, Consumers: 1}, w.Depth)
		assert.Equal(t, 2, w.Dead.Messages)
		assert.Equal(t, []string{"1h", "2h!"}, retired(w))
		assert.Equal(t, "orders.retry.1h", w.Tiers[0].Queue)
		assert.Equal(t, 3, w.Tiers[0].Messages)
		assert.Equal(t, status.At.Add(time.Hour), w.Tiers[0].NextDue)
		assert.Zero(t, w.Tiers[1].NextDue, "an empty tier")
		assert.Empty(t, w.Inbox.Queue)
		assert.Equal(t, letters.Depth{Queue: "retry.orphans", Messages: 1, Ready: 1}, status.Orphans)

		w = find("lost")
		assert.True(t, w.Missing)
		assert.False(t, w.Dead.Missing)
		assert.Equal(t, []string{"1h!"}, retired(w), "no key leads back to a work queue that is gone")
		assert.Equal(t, []string{"1h shared"}, retired(find("quiet")))
		assert.Equal(t, []string{"3h shared"}, retired(find("mails")))
		w = find("classic")
		assert.Equal(t, []string{"1h shared"}, retired(w))
		assert.Equal(t, "classic.retry.inbox", w.Inbox.Queue)
		var stray []string
		for _, s := range status.Stray {
			stray = append(stray, s.Queue)
		}
		assert.Equal(t, []string{"gone.retry.1h", "left.retry.1h"}, stray)
		assert.False(t, slices.ContainsFunc(status.Queues, func(w letters.WorkQueue) bool { return w.Name == "gone" }))

		named, err := b.store.Status(t.Context(), "orders", "absent")
		require.NoError(t, err)
		require.Len(t, named.Queues, 2)
		assert.True(t, named.Queues[0].Missing && named.Queues[0].Dead.Missing, "a work queue that does not exist")
		assert.Empty(t, named.Stray)
	})
}

func TestManagementIsNeeded(t *testing.T) {
	store, err := deadletter.Open(deadletter.Config{URI: modelURI}, nil)
	require.NoError(t, err)
	defer store.Close()
	_, err = store.Status(t.Context())
	require.ErrorContains(t, err, "Config.Management is empty")
	_, err = store.Prune(t.Context(), deadletter.Prune{})
	require.ErrorContains(t, err, "Config.Management is empty")
	_, err = store.Prune(t.Context(), deadletter.Prune{Current: []topology.Topology{topologyOf("orders", "", nil)}})
	require.ErrorContains(t, err, "Tiers")
}

// TestPruneLeavesTheTiersOfAGroupInUse, by a work queue that it was not told of.
func TestPruneLeavesTheTiersOfAGroupInUse(t *testing.T) {
	onBoard(t, func(t *testing.T, b board) {
		classic := amqp091.Table{"x-queue-type": "classic"}
		shared, orders := topologyOf("mails", "shop", classic, time.Second), topologyOf("orders", "", nil, time.Second)
		b.declare(topologyOf("orders", "shop", nil, time.Second), shared, orders)
		pruned, err := b.store.Prune(t.Context(), deadletter.Prune{Current: []topology.Topology{orders}})
		require.NoError(t, err)
		assert.Empty(t, pruned, "mails is bound to the group")
		b.publish(shared.Exchanges[0].Name, "1s.mails", 1)
		time.Sleep(2 * time.Second)
		assert.Equal(t, 1, b.broker.PurgeQueue("mails"))

		mails := topologyOf("mails", "", classic, time.Second)
		b.declare(mails)
		began := time.Now()
		pruned, err = b.store.Prune(t.Context(), deadletter.Prune{Current: []topology.Topology{orders, mails}})
		require.NoError(t, err)
		assert.Equal(t, deadletter.Pruned{Removed: []string{"mails.retry.inbox", "shop.retry.1s"}}, pruned)
		assert.Greater(t, time.Since(began), 15*time.Second, "the numbers of messages come late")
		for _, e := range b.broker.Exchanges() {
			assert.False(t, strings.HasPrefix(e, "shop"), e)
		}
		for _, of := range []string{"orders", "mails"} {
			b.publish("retry", "1s."+of, 1)
			time.Sleep(2 * time.Second)
			assert.Equal(t, 1, b.broker.PurgeQueue(of))
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = b.store.Prune(ctx, deadletter.Prune{})
		require.ErrorIs(t, err, context.Canceled)
	})
}

// TestPruneUnbindsTheInboxFromAFormerGroup: an earlier prune that ended early has removed the binding of its member.
func TestPruneUnbindsTheInboxFromAFormerGroup(t *testing.T) {
	onBoard(t, func(t *testing.T, b board) {
		classic := amqp091.Table{"x-queue-type": "classic"}
		now := topologyOf("mails", "store", classic, time.Second)
		b.declare(topologyOf("mails", "shop", classic, time.Second), topologyOf("late", "shop", nil, time.Second), now,
			topologyOf("mails", "", classic, time.Minute)) // its tier is to be removed
		require.NoError(t, b.channel.QueueUnbind("mails", "member.mails", "shop.retry.return", nil))
		pruned, err := b.store.Prune(t.Context(), deadletter.Prune{Current: []topology.Topology{now}})
		require.NoError(t, err)
		assert.Equal(t, deadletter.Pruned{Removed: []string{"mails.retry.1m"}}, pruned)
		b.broker.DeleteExchange("retry.return.any") // the alternate one
		for group, bound := range map[string]int{"shop": 0, "store": 1} {
			assert.Equal(t, bound, b.broker.Publish(group+".retry.return", "1s.mails", amqp091.Publishing{}), group)
		}
	})
}

// A work queue joins the group while Prune waits.
func TestPruneLeavesAGroupThatIsJoinedMeanwhile(t *testing.T) {
	onBoard(t, func(t *testing.T, b board) {
		orders, late := topologyOf("orders", "", nil, time.Second), topologyOf("late", "shop", nil, time.Second)
		b.declare(topologyOf("orders", "shop", nil, time.Second), orders)
		time.AfterFunc(5*time.Second, func() { assert.NoError(t, late.Declare(b.channel)) })
		pruned, err := b.store.Prune(t.Context(), deadletter.Prune{Current: []topology.Topology{orders}})
		require.NoError(t, err)
		assert.Equal(t, deadletter.Pruned{Left: []string{"shop.retry.1s"}}, pruned)
		b.publish(late.Exchanges[0].Name, "1s.late", 1)
		time.Sleep(2 * time.Second)
		assert.Equal(t, 1, b.broker.PurgeQueue("late"))
	})
}

func TestDrainLeavesWhatHasNoWorkQueue(t *testing.T) {
	onBoard(t, func(t *testing.T, b board) {
		orders, gone := topologyOf("orders", "shop", nil, time.Hour), topologyOf("gone", "shop", nil, time.Hour)
		b.declare(orders, gone)
		b.publish(orders.Exchanges[0].Name, "1h.orders", 2)
		b.publish(gone.Exchanges[0].Name, "1h.gone", 1)
		b.broker.DeleteQueue("gone", false)
		summary, err := b.store.Drain(t.Context(), "shop.retry.1h", letters.Redrive{})
		require.ErrorIs(t, err, letters.ErrNoTarget)
		assert.ErrorContains(t, err, `"gone"`)
		assert.Equal(t, letters.Summary{Total: 3, Done: 2, Kept: 1}, summary)
		assert.Equal(t, []int{2, 1}, []int{b.broker.PurgeQueue("orders"), b.broker.PurgeQueue("shop.retry.1h")})

		_, err = b.store.Drain(t.Context(), "orders", letters.Redrive{})
		assert.ErrorContains(t, err, "is not the queue of a tier")
		_, err = b.store.Drain(t.Context(), "orders.retry.5h", letters.Redrive{})
		assert.ErrorIs(t, err, letters.ErrNoQueue)
		_, err = b.store.Drain(t.Context(), "shop.retry.1h", letters.Redrive{Canary: 1})
		assert.ErrorContains(t, err, "leave them out")
	})
}
