package deadletter_test

import (
	"slices"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// A board declares work queues whose names no other test uses, and opens stores of them.
type board struct {
	t    *testing.T
	name string // the prefix, and a part of all names
}

func newBoard(t *testing.T) board {
	t.Helper()
	name := broker.Name(t, "board")
	broker.Clean(t, name)
	return board{t, name}
}

func (b board) queue(base string) string       { return base + "_" + b.name }
func (b board) tier(group, word string) string { return b.queue(group) + "." + b.name + "." + word }

func (b board) store() *deadletter.Store {
	b.t.Helper()
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(b.t), Prefix: b.name,
		Management: broker.ManagementURL(b.t)}, nil)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, store.Close()) })
	return store
}

// of returns the topology of a work queue, with tiers of its own where the group is empty.
func (b board) of(queue, group string, tiers ...time.Duration) topology.Topology {
	return b.existing(queue, group, nil, tiers...)
}

// existing is of for a work queue that exists with these arguments. Nil: it does not exist.
func (b board) existing(queue, group string, arguments amqp091.Table, tiers ...time.Duration) topology.Topology {
	config := topology.Config{Prefix: b.name, Tiers: backoff.Schedule(tiers).Tiers()}
	if group != "" {
		config.TierGroup = b.queue(group)
	}
	if arguments != nil {
		config.WorkQueueMode = topology.Leave
	}
	return topology.New(config, topology.Queue{Name: b.queue(queue), Durable: true, Arguments: arguments})
}

func (b board) declare(topologies ...topology.Topology) {
	b.t.Helper()
	for _, t := range topologies {
		broker.Declare(b.t, t.Declare)
	}
}

// publish publishes messages that the broker routes and confirms.
func (b board) publish(exchange, key string, bodies ...string) {
	b.t.Helper()
	for _, body := range bodies {
		testapp.Send(b.t, exchange, key, amqp091.Publishing{MessageId: body, Body: []byte(body),
			Headers: amqp091.Table{"_watermill_message_uuid": body}})
	}
}

// wait publishes copies that wait on a tier.
func (b board) wait(t topology.Topology, tier string, bodies ...string) {
	b.t.Helper()
	b.publish(t.Exchanges[0].Name, tier+"."+t.WorkQueue.Name, bodies...)
}

func find(t *testing.T, status letters.Status, name string) letters.WorkQueue {
	t.Helper()
	at := slices.IndexFunc(status.Queues, func(w letters.WorkQueue) bool { return w.Name == name })
	require.GreaterOrEqual(t, at, 0, "%s is not in the status", name)
	return status.Queues[at]
}

// TestStatusIsFresh: the numbers of ready messages and of consumers are not those of the management API, which are
// late.
func TestStatusIsFresh(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	orders := b.of("orders", "", time.Hour)
	b.declare(orders)
	store := b.store()
	for n := 1; n <= 3; n++ { // the API can be new by chance
		b.publish(b.name, "dead."+b.queue("orders"), "letter")
		b.wait(orders, "1h", "waits")
		_, err := broker.Channel(t).Consume(b.queue("orders"), "", false, false, false, false, nil)
		require.NoError(t, err)
		status, err := store.Status(t.Context(), b.queue("orders"))
		require.NoError(t, err)
		w := find(t, status, b.queue("orders"))
		assert.Equal(t, []int{n, n, n}, []int{w.Dead.Ready, w.Dead.Messages, w.Consumers})
		require.Len(t, w.Tiers, 1)
		assert.Equal(t, n, w.Tiers[0].Messages)
		assert.Equal(t, status.At.Add(time.Hour), w.Tiers[0].NextDue)
	}
}
