package order_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// onModel runs a test with a world on a model of a broker, in virtual time.
func onModel(t *testing.T, test func(t *testing.T, b *model.Broker, w *world), change ...func(*config.Config)) {
	t.Helper()
	testapp.OnModel(t, func(t *testing.T, b *model.Broker, c config.Config) { test(t, b, worldOf(t, c)) }, change...)
}

// TestOtherNumbersAreRefused: with a smaller prefetch, a third process would get what the second one had not fetched
// before what it had.
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
	onModel(t, func(t *testing.T, b *model.Broker, w *world) {
		w.config.AMQP.Queue.Arguments = amqp091.Table{"x-message-ttl": 60_000}
		err := w.refused(retry.Options{})
		require.ErrorContains(t, err, "x-message-ttl 60000")
		require.ErrorContains(t, err, "is a gap in the order of its key")
		require.Empty(t, b.Queues())

		w.config.AMQP.Queue.Arguments = nil
		existing := topology.New(topology.Config{Prefix: w.config.Prefix, Partitions: 4, Prefetch: 512},
			topology.Queue{Name: w.queue, Durable: true}).WorkQueue.Arguments
		existing["x-delivery-limit"] = int64(20)
		b.DeclareQueue(w.queue, existing)
		err = w.refused(retry.Options{})
		require.ErrorContains(t, err, "x-delivery-limit 20")
		require.ErrorContains(t, err, "Delete a queue that has it, while it is empty")
		b.DeleteQueue(w.queue, false)

		w.config.AMQP.Queue.Arguments = amqp091.Table{"x-max-length": 1000, "x-overflow": "reject-publish"}
		w.publish(w.start(retry.Options{}, w.sink.handle), messages(2, 2, never))
		time.Sleep(time.Minute)
		assert.Equal(t, 4, w.sink.count(), "a queue that refuses messages makes no gaps")
	})
}

// TestTheStartSaysWhereTheProcessPublishes: without an exchange of the topic to the partitions, else to the work queue.
func TestTheStartSaysWhereTheProcessPublishes(t *testing.T) {
	for name, row := range map[string]struct {
		group, queue, says string
		change             func(*config.Config)
	}{
		"no exchange": {change: func(*config.Config) {}, queue: "orders",
			says: "this_process_publishes_to:the partition of its key topic:orders"},
		"an exchange": {group: "billing", change: testapp.FanOut, queue: "orders_billing",
			says: "this_process_publishes_to:the exchange of its topic, and then moved to the partition of its key topic:orders"},
	} {
		t.Run(name, func(t *testing.T) {
			onModel(t, func(t *testing.T, b *model.Broker, w *world) {
				a := testapp.Connect(t, w.config)
				a.AddConsumerHandler(a.Router, "billing", "orders", w.sink.handle,
					retry.Options{Group: row.group, Order: retry.Order{Key: keyOf, Partitions: 4}})
				a.Run()
				lines := a.Log.Lines("The order of each key is kept")
				require.Len(t, lines, 1)
				for _, text := range []string{"info ", "partitions:4 ", "queue:" + row.queue + " ", row.says} {
					assert.Contains(t, lines[0], text)
				}
				require.NoError(t, a.Pause("billing"))
				time.Sleep(time.Minute)
				require.NoError(t, a.Publisher().Publish("orders", messages(10, 1, never)...))
				w.queue = row.queue
				ordered := 0
				for _, partition := range w.partitions(4) {
					ordered += len(b.Messages(partition))
				}
				assert.Equal(t, map[bool]int{true: 10}[row.group == ""], ordered, "they are where the log says")
				assert.Equal(t, map[bool]int{true: 10}[row.group != ""], len(b.Messages(row.queue)))
				require.NoError(t, a.Resume("billing"))
				time.Sleep(time.Minute)
				assert.Equal(t, 10, w.sink.count())
				w.sink.inOrder(t)
			}, row.change)
		})
	}
}

// TestThereAndBack follows docs/order.md: "From an unordered queue", "Other partitions", and "Back to an unordered queue".
func TestThereAndBack(t *testing.T) {
	onModel(t, func(t *testing.T, b *model.Broker, w *world) {
		// run starts an app until it has handled its messages. Then its queues are empty, and an operator deletes them.
		run := func(options retry.Options, queues ...string) {
			t.Helper()
			w.sink = newSink()
			a := testapp.Connect(t, w.config)
			a.AddConsumerHandler(a.Router, "billing", w.queue, w.sink.handle, options)
			stop := testapp.Start(t, a.Router)
			all := messages(4, 5, sometimes(0.2))
			require.NoError(t, a.Publisher().Publish(w.queue, all...))
			time.Sleep(time.Minute)
			assert.Equal(t, len(all), w.sink.count(), "all are handled")
			if options.Order.Key != nil {
				w.sink.inOrder(t)
			}
			stop()
			require.NoError(t, a.Close())
			for _, queue := range append(queues, w.queue) {
				assert.Empty(t, b.Messages(queue))
			}
			for _, queue := range queues {
				require.True(t, b.DeleteQueue(queue, true), queue)
			}
		}
		run(retry.Options{}, w.queue, "orders.retry.100ms", "orders.retry.300ms")
		for _, options := range []retry.Options{
			{Order: retry.Order{Partitions: 4}},
			{Order: retry.Order{Partitions: 2}},
			{Order: retry.Order{Partitions: 2}, Prefetch: 1024},
			{Order: retry.Order{Partitions: 2}, Prefetch: 64},
		} {
			options.Order.Key = keyOf
			run(options, w.partitions(options.Order.Partitions)...)
		}
		for _, queue := range []string{w.queue, w.queue + ".order.members"} {
			require.True(t, b.DeleteQueue(queue, true), queue)
		}
		run(retry.Options{})
		for _, queue := range b.Queues() {
			assert.NotContains(t, queue, ".order.", "nothing of the order comes back")
		}
	})
}

// TestAMissingPartitionIsNamed: an operator who looks for it finds its exchange and its routing key.
func TestAMissingPartitionIsNamed(t *testing.T) {
	onModel(t, func(t *testing.T, b *model.Broker, w *world) {
		a := w.start(retry.Options{Order: retry.Order{Partitions: 1}}, w.sink.handle)
		b.Unbind(w.queue+".order.0", w.queue+".order")
		for n := 1; n < 3; n++ {
			err := a.Publisher().Publish(w.queue, messages(n, 1, never)...)
			require.ErrorIs(t, err, publish.ErrUnroutable)
			assert.ErrorContains(t, err, `no queue is bound to exchange "orders.order" with the routing key "0"`)
		}
	})
}
