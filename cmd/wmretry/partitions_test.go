package main

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestStatusCountsPartitions(t *testing.T) {
	t.Parallel()
	work := unique(t, "wmretry_partitions")
	q := &queues{t: t, work: work, dead: deadletter.QueueOf(work), prefix: work + "_own", channel: channelOf(t)}
	q.topology = topology.New(topology.Config{Prefix: q.prefix, Partitions: 3, Prefetch: 5},
		topology.Queue{Name: work, Durable: true})
	require.NoError(t, q.topology.Declare(q.channel))
	t.Cleanup(func() { removeAll(t, work) })
	for _, partition := range []string{"0", "1", "2"} {
		send(t, q.channel, work+".order", partition, make([]amqp091.Publishing, 7)...)
	}
	require.NoError(t, q.channel.Qos(1, 0, false))
	_, err := q.channel.Consume(work+".order.0", "", false, false, false, false, nil) // one message stays without an ack
	require.NoError(t, err)
	require.NoError(t, q.channel.Publish("", work, true, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent}))

	want := deadletter.Depth{Queue: work, Messages: 22, Ready: 21, Unacked: 1}
	require.Eventually(t, func() bool {
		w, found := q.statusOf(t, run(t, 0, "status", work, "--prefix", q.prefix, "--json").stdout)
		return found && w.Depth == want
	}, 2*patience, time.Second, "the figures of the management API")
	status := func() string { return run(t, 0, "status", "--prefix", q.prefix).stdout }
	assert.Regexp(t, `(?m)^`+work+` +22 +21 +1 +0 +no consumer: paused, or its app is down, with 3 partitions$`, status())

	_, err = q.channel.QueueDelete(work, false, false, false)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(status(), "does not exist, with 3 partitions") },
		2*patience, time.Second, "the work queue is gone")
	assert.Regexp(t, `(?m)^`+work+` +21 +20 +1 +0 +does not exist`, status())
}

// TestExportedPermissionsSufficeForPartitions runs an app, and decides about its blocked key, with exactly the exported
// permissions.
func TestExportedPermissionsSufficeForPartitions(t *testing.T) {
	t.Parallel()
	name := unique(t, "wmretry_partitions")
	t.Cleanup(func() { removeAll(t, name) })
	work := "orders_" + name
	address := usersOf(t, name, "--queue", work, "--prefix", name, "--partitions", "2")
	as := func(code int, role string, args ...string) result {
		t.Helper()
		return runWith(t, code, address[role], append(args, "--prefix", name)...)
	}
	app := amqp.NewDurableQueueConfig(strings.TrimPrefix(address["app"][0], "AMQP_URL="))
	var calls atomic.Int32
	runApp(t, config.Config{
		AMQP: app, Policy: retry.Policy{Schedule: backoff.Schedule{time.Hour}}, Settings: rabbitmq.Settings{Prefix: name},
	}, func(rabbit retry.Connection, router *message.Router) {
		rabbit.AddConsumerHandler(router, "billing", work, func(*message.Message) error {
			calls.Add(1)
			return backoff.Permanent(assert.AnError)
		}, retry.Options{Order: retry.Order{
			Key: func(msg *message.Message) string { return msg.Metadata.Get("customer") }, Partitions: 2, Block: true,
		}})
	})
	q := &queues{t: t, work: work, dead: work + ".dead", prefix: name, channel: channelOf(t)}
	msg := message.NewMessage(watermill.NewUUID(), []byte("1"))
	msg.Metadata.Set("customer", "7")
	published, err := amqp.DefaultMarshaler{}.Marshal(msg)
	require.NoError(t, err)
	require.NoError(t, q.channel.Publish("", work, true, false, published))

	shows := func(key string) func() bool {
		return func() bool {
			r := start(t, address["operator"], "order", "status", work, "--prefix", name).wait()
			return r.code == 0 && strings.Contains(r.stdout, key)
		}
	}
	require.Eventually(t, shows("permanent: "), patience, 100*time.Millisecond, "the blocked key is shown")
	for _, role := range []string{"viewer", "redriver"} {
		assert.Contains(t, as(1, role, "order", "skip", work, "7").stderr, "ACCESS_REFUSED")
	}
	as(0, "operator", "order", "retry", work, "7")
	require.Eventually(t, func() bool { return calls.Load() == 2 && shows("permanent: ")() }, patience,
		100*time.Millisecond, "it is blocked again")
	as(0, "operator", "order", "skip", work, "7")
	q.await(q.dead, 1)
	as(0, "operator", "topology", "plan", "--queue", work, "--partitions", "2")
	as(0, "operator", "status", work)
	other := as(2, "operator", "topology", "plan", "--queue", work, "--partitions", "3")
	assert.Contains(t, other.stdout, "x-delivery-limit is 2000512, wanted is 3000512")
}
