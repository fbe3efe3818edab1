package order_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestOtherNumbersAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(retry.Options{}, w.sink.handle).stop()
	for want, options := range map[string]retry.Options{
		"it is one of 4 partitions with a Prefetch of 512, and this handler has 8 with 512": {
			Order: retry.Order{Partitions: 8}},
		"it is one of 4 partitions with a Prefetch of 512, and this handler has 4 with 64": {
			Concurrency: 16, Prefetch: 64},
	} {
		require.ErrorContains(t, w.refused(options), want)
	}
	unordered := newWorld(t)
	plain := testapp.Connect(t, unordered.config)
	plain.Handle(unordered.queue, 1, func(*message.Message) error { return nil })
	testapp.Start(t, plain.Router)()
	require.ErrorContains(t, unordered.refused(retry.Options{}), "From an unordered queue")
}

// TestArgumentsThatMakeGapsAreRefused, those of the app before anything is declared, and those of a queue that exists.
func TestArgumentsThatMakeGapsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.AMQP.Queue.Arguments = amqp091.Table{"x-message-ttl": 60_000}
	err := w.refused(retry.Options{})
	require.ErrorContains(t, err, "x-message-ttl 60000")
	require.ErrorContains(t, err, "is a gap in the order of its key")
	require.False(t, testapp.Exists(t, w.queue))
	require.False(t, testapp.Exists(t, w.queue+".order.0"))

	w.config.AMQP.Queue.Arguments = nil
	existing := topology.New(topology.Config{Prefix: w.config.Prefix, Partitions: 4, Prefetch: 512},
		topology.Queue{Name: w.queue, Durable: true}).WorkQueue.Arguments
	existing["x-delivery-limit"] = int64(20)
	_, err = broker.Channel(t).QueueDeclare(w.queue, true, false, false, false, existing)
	require.NoError(t, err)
	err = w.refused(retry.Options{})
	require.ErrorContains(t, err, "x-delivery-limit 20")
	require.ErrorContains(t, err, "Delete a queue that has it, while it is empty")
	testapp.Delete(t, w.queue)

	w.config.AMQP.Queue.Arguments = amqp091.Table{"x-max-length": 1000, "x-overflow": "reject-publish"}
	w.publish(w.start(retry.Options{}, w.sink.handle), messages(2, 2, never))
	testapp.Eventually(t, func() bool { return w.sink.count() == 4 }, "a queue that refuses messages makes no gaps")
}

// TestTheStartSaysWhereTheProcessPublishes: without an exchange of the topic to the partitions, else to the work queue.
func TestTheStartSaysWhereTheProcessPublishes(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		group, says   string
		change        func(*config.Config)
		work, ordered int // messages
	}{
		"no exchange": {says: "this_process_publishes_to:the partition of its key topic:", ordered: 10},
		"an exchange": {group: "billing", change: testapp.FanOut, work: 10,
			says: "this_process_publishes_to:the exchange of its topic, and then moved to the partition of its key topic:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			topic := w.queue
			if row.change != nil {
				row.change(&w.config)
				w.queue += "_" + row.group
			}
			a := &app{App: testapp.Connect(t, w.config)}
			a.AddConsumerHandler(a.Router, "billing", topic, w.sink.handle,
				retry.Options{Group: row.group, Order: retry.Order{Key: keyOf, Partitions: 4}})
			t.Cleanup(testapp.Start(t, a.Router))
			lines := a.Log.Lines("The order of each key is kept")
			require.Len(t, lines, 1)
			assert.Contains(t, lines[0], "info ")
			assert.Contains(t, lines[0], "partitions:4 ")
			assert.Contains(t, lines[0], "queue:"+w.queue+" ")
			assert.Contains(t, lines[0], row.says+topic)

			require.NoError(t, a.Pause("billing"))
			testapp.Eventually(t, func() bool { return !a.Health().Subscriptions[0].Consuming }, "it moves nothing")
			require.NoError(t, a.Publisher().Publish(topic, messages(10, 1, never)...))
			testapp.Eventually(t, func() bool {
				return testapp.Depth(t, w.queue) == row.work && w.ordered(4) == row.ordered
			}, "they are where the log says")
			require.NoError(t, a.Resume("billing"))
			testapp.Eventually(t, func() bool { return w.sink.count() == 10 }, "all are handled")
			w.sink.inOrder(t)
		})
	}
}

// TestThereAndBack follows docs/order.md: "From an unordered queue", "Other partitions", and "Back to an unordered queue".
func TestThereAndBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	plain := func() (*testapp.App, func()) {
		a := testapp.Connect(t, w.config)
		a.Handle(w.queue, 4, w.sink.handle)
		return a, testapp.Start(t, a.Router)
	}
	send := func(a *testapp.App, keys string) {
		t.Helper()
		all := messages(4, 5, sometimes(0.2))
		for _, msg := range all {
			var b body
			require.NoError(t, json.Unmarshal(msg.Payload, &b))
			b.Key = keys + b.Key
			msg.Payload, _ = json.Marshal(b)
			msg.Metadata.Set("customer", b.Key)
		}
		before := w.sink.count()
		require.NoError(t, a.Publisher().Publish(w.queue, all...))
		testapp.Eventually(t, func() bool { return w.sink.count() == before+len(all) }, "all are handled")
	}
	empty := func(queues ...string) {
		t.Helper()
		for _, queue := range queues {
			testapp.Eventually(t, func() bool { return testapp.Depth(t, queue) == 0 }, "%s is empty", queue)
		}
	}
	remove := func(queues ...string) {
		t.Helper()
		for _, queue := range queues {
			testapp.Delete(t, queue)
		}
	}
	var tiers []string
	for _, tier := range w.config.Policy.Schedule {
		tiers = append(tiers, w.queue+"."+w.config.Prefix+"."+backoff.Tier(tier).String())
	}

	unordered, stop := plain()
	send(unordered, "before ")
	empty(append(tiers, w.queue)...)
	stop()
	remove(w.queue)
	var partitions []string
	for _, options := range []retry.Options{
		{Order: retry.Order{Partitions: 4}},
		{Order: retry.Order{Partitions: 2}},
		{Order: retry.Order{Partitions: 2}, Prefetch: 1024},
		{Order: retry.Order{Partitions: 2}, Prefetch: 64},
	} {
		remove(partitions...)
		w.sink = newSink()
		ordered := w.start(options, w.sink.handle)
		remove(tiers...)
		tiers = nil
		send(ordered.App, fmt.Sprint(options.Order.Partitions, options.Prefetch, " "))
		partitions = w.partitions(options.Order.Partitions)
		empty(append(partitions, w.queue)...)
		ordered.stop()
		w.sink.inOrder(t)
	}
	remove(append(partitions, w.queue, w.queue+".order.members")...)
	unordered, stop = plain()
	send(unordered, "after ")
	stop()
	assert.False(t, testapp.Exists(t, w.queue+".order.members"), "nothing of the order comes back")
	assert.False(t, testapp.Exists(t, w.queue+".order.0"))
}

// TestAMissingPartitionIsNamed: an operator who looks for it finds its exchange and its routing key.
func TestAMissingPartitionIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.start(retry.Options{Order: retry.Order{Partitions: 1}}, w.sink.handle)
	require.NoError(t, broker.Channel(t).QueueUnbind(w.queue+".order.0", "0", w.queue+".order", nil))
	for n := 1; n < 3; n++ {
		err := a.Publisher().Publish(w.queue, messages(n, 1, never)...)
		require.ErrorIs(t, err, publish.ErrUnroutable)
		assert.ErrorContains(t, err, `no queue is bound to exchange "`+w.queue+`.order" with the routing key "0"`)
	}
}
