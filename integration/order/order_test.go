package order_test

import (
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/ask"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestNoMessageOvertakesOneThatFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.start(retry.Options{}, w.sink.handle)
	all := messages(20, 30, sometimes(0.1))
	w.publish(a, all)
	testapp.Eventually(t, func() bool { return w.sink.count() == len(all) }, "all are handled")
	w.sink.inOrder(t)
	assert.Zero(t, w.sink.rewinds)
	assert.NotEmpty(t, a.Events(retry.Retried))
	w.settled(4)
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

// slowly is a handler that takes a moment, so that messages are in flight when something happens.
func (s *sink) slowly(msg *message.Message) error {
	time.Sleep(2 * time.Millisecond)
	return s.handle(msg)
}

func TestAPauseGivesThePartitionsToAnotherProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var first, second atomic.Int64
	a := w.start(retry.Options{}, func(msg *message.Message) error { first.Add(1); return w.sink.slowly(msg) })
	w.start(retry.Options{}, func(msg *message.Message) error { second.Add(1); return w.sink.slowly(msg) })
	all := messages(20, 60, sometimes(0.1))
	half := len(all) / 2
	w.publish(a, all[:half])
	testapp.Eventually(t, func() bool { return w.sink.count() > 100 }, "it is handled")
	require.NoError(t, a.Pause("billing"))
	testapp.Eventually(t, func() bool { return a.Health().Subscriptions[0].InFlight == 0 }, "what runs has ended")
	w.publish(a, all[half:])
	testapp.Eventually(t, func() bool { return second.Load() >= int64(half) }, "the other one has them")
	before := first.Load()
	testapp.Eventually(t, func() bool { return w.sink.count() == len(all) }, "all are handled")
	assert.Equal(t, before, first.Load())
	require.NoError(t, a.Health().Ready())
	require.NoError(t, a.Resume("billing"))
	testapp.Eventually(t, func() bool { return a.Health().Subscriptions[0].Consuming }, "it consumes again")
	w.settled(4)
	w.sink.inOrder(t)
	assert.Zero(t, w.sink.rewinds)
}

func TestThePartitionsAreShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.start(retry.Options{}, w.sink.slowly)
	w.start(retry.Options{}, w.sink.slowly)
	connection := broker.Connect(t)
	owned := func() (counts []int) { // of each process
		channel, err := connection.Channel()
		require.NoError(t, err)
		defer channel.Close()
		answers, err := ask.All(t.Context(), channel, naming.Prefix(w.config.Prefix).OrderControl(),
			command.Request{Queue: w.queue, Do: command.Status}, 2, soon)
		require.NoError(t, err)
		for _, a := range answers {
			count := 0
			for _, p := range a.Handlers[0].Partitions[1:] {
				if p.Delivered > 0 {
					count++
				}
			}
			counts = append(counts, count)
		}
		return counts
	}
	testapp.Eventually(t, func() bool {
		for k := range 20 {
			msg := messages(1, 1, never)[0]
			msg.Metadata.Set("customer", fmt.Sprint("shared-", k))
			w.publish(first, []*message.Message{msg})
		}
		return slices.Equal(owned(), []int{2, 2})
	}, "each has two")
}

// TestMessagesAreMovedWhileTheAppCannotPublish: the connection that publishes is another one.
func TestMessagesAreMovedWhileTheAppCannotPublish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	publishing, _ := broker.Proxy(t)
	var opened atomic.Int64
	w.config.AMQP.Connection.AmqpConfig = &amqp091.Config{
		Dial: func(network, address string) (net.Conn, error) {
			if n := opened.Add(1); n == 2 || n > 3 { // the third one moves
				address = publishing.Listen
			}
			return amqp091.DefaultDial(30*time.Second)(network, address)
		},
	}
	a := w.start(retry.Options{}, w.sink.handle)
	publishing.Stop()
	testapp.Eventually(t, func() bool { return a.Log.Count("Connection lost") == 1 }, "it has noticed")
	for _, msg := range messages(10, 10, never) {
		testapp.Send(t, "", w.queue, published(msg))
	}
	testapp.Eventually(t, func() bool { return w.sink.count() == 100 }, "all are handled")
	w.sink.inOrder(t)
	require.ErrorIs(t, a.Publisher().Publish(w.queue, messages(1, 1, never)...), publish.ErrNotConnected)
	require.Zero(t, a.Log.Count("cannot be moved"))
}
