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
func (b board) config(management bool) deadletter.Config {
	config := deadletter.Config{URI: broker.URL(b.t), Prefix: b.name}
	if management {
		config.Management = broker.ManagementURL(b.t)
	}
	return config
}

func (b board) store(management bool) *deadletter.Store {
	b.t.Helper()
	store, err := deadletter.Open(b.config(management), nil)
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
	b.publish(t.Exchange(), tier+"."+t.WorkQueue.Name, bodies...)
}

// retired lists the tiers of a work queue without the names of the test, those that are retired with a "!".
func (b board) retired(w letters.WorkQueue) (tiers []string) {
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

func find(t *testing.T, status letters.Status, name string) letters.WorkQueue {
	t.Helper()
	at := slices.IndexFunc(status.Queues, func(w letters.WorkQueue) bool { return w.Name == name })
	require.GreaterOrEqual(t, at, 0, "%s is not in the status", name)
	return status.Queues[at]
}

func TestStatus(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	orders, lost, gone := b.of("orders", "", time.Hour, 2*time.Hour), b.of("lost", "", time.Hour), b.of("gone", "",
		time.Hour)
	quiet, last := b.of("quiet", "shop", time.Hour), b.of("last", "left", time.Hour)
	classic := topology.New(topology.Config{Prefix: b.name, Tiers: backoff.Schedule{time.Hour}.Tiers(),
		TierGroup: b.queue("shop"), WorkQueueMode: topology.Leave},
		topology.Queue{Name: b.queue("classic"), Durable: true})
	b.declare(orders, lost, gone, quiet, last, classic)
	b.wait(orders, "1h", "a", "b", "c")
	b.wait(gone, "1h", "d")
	b.publish(b.name, "dead."+b.queue("orders"), "e", "f")
	b.publish(b.name+".orphans", "1h.x", "g")
	b.publish("", b.queue("orders"), "h", "i")
	b.publish("", b.queue("classic")+"."+b.name+".inbox") // nothing: the inbox exists
	for _, queue := range []string{b.queue("lost"), b.queue("gone"), b.queue("gone") + ".dead", b.queue("last"),
		b.queue("last") + ".dead"} {
		testapp.Delete(t, queue)
	}
	require.NoError(t, broker.Channel(t).QueueUnbind(b.tier("orders", "2h"), "2h."+b.queue("orders"), b.name, nil))
	consumer := broker.Channel(t)
	require.NoError(t, consumer.Qos(1, 0, false))
	deliveries, err := consumer.Consume(b.queue("orders"), "", false, false, false, false, nil)
	require.NoError(t, err)
	broker.Receive(t, deliveries, "a message of the consumer")

	store := b.store(true)
	var status letters.Status
	broker.Eventually(t, 90*time.Second, func() bool {
		status, err = store.Status(t.Context())
		if err != nil {
			return false
		}
		w := find(t, status, b.queue("orders"))
		return w.Unacked == 1 && w.Ready == 1 && w.Consumers == 1 && w.Dead.Messages == 2 && status.Orphans.Messages == 1 &&
			len(w.Tiers) == 2 && w.Tiers[0].Messages == 3
	}, "the figures of the management API")
	w := find(t, status, b.queue("orders"))
	assert.Equal(t, []string{"1h", "2h!"}, b.retired(w))
	assert.Equal(t, status.At.Add(time.Hour), w.Tiers[0].NextDue)
	assert.Zero(t, w.Tiers[1].NextDue, "an empty tier")
	assert.Equal(t, b.tier("orders", "1h"), w.Tiers[0].Queue)
	assert.False(t, w.Missing)
	assert.Empty(t, w.Inbox.Queue)
	assert.Equal(t, b.name+".orphans", status.Orphans.Queue)

	w = find(t, status, b.queue("lost"))
	assert.True(t, w.Missing)
	assert.False(t, w.Dead.Missing)
	assert.Equal(t, []string{"1h!"}, b.retired(w), "no key leads back to a work queue that is gone")
	assert.Equal(t, []string{"1h shared"}, b.retired(find(t, status, b.queue("quiet"))))
	w = find(t, status, b.queue("classic"))
	assert.Equal(t, []string{"1h shared"}, b.retired(w))
	assert.Equal(t, b.queue("classic")+"."+b.name+".inbox", w.Inbox.Queue)
	var stray []string
	for _, s := range status.Stray {
		stray = append(stray, s.Queue)
	}
	assert.Equal(t, []string{b.tier("gone", "1h"), b.tier("left", "1h")}, stray)
	assert.False(t, slices.ContainsFunc(status.Queues,
		func(w letters.WorkQueue) bool { return w.Name == b.queue("gone") }))

	t.Run("names", func(t *testing.T) {
		named, err := store.Status(t.Context(), b.queue("orders"), b.queue("absent"))
		require.NoError(t, err)
		require.Len(t, named.Queues, 2)
		assert.True(t, named.Queues[0].Missing && named.Queues[0].Dead.Missing, "a work queue that does not exist")
		assert.Empty(t, named.Stray)
		_, err = b.store(false).Status(t.Context())
		require.ErrorContains(t, err, "Config.Management is empty")
	})
}

// TestStatusIsFresh: the numbers of ready messages and of consumers are not those of the management API, which are
// late.
func TestStatusIsFresh(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	orders := b.of("orders", "", time.Hour)
	b.declare(orders)
	store := b.store(true)
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
