package order_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/testapp"
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

func TestOtherKeysAreHandledMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.Policy.Schedule = []time.Duration{time.Hour}
	a := w.start(retry.Options{Order: retry.Order{Partitions: 1}, Concurrency: 2}, w.sink.handle)
	all := messages(10, 20, func(k, n int) int {
		if k == 3 && n == 0 {
			return 1
		}
		return 0
	})
	w.publish(a, all)
	testapp.Eventually(t, func() bool { return w.sink.count() == 9*20 }, "all but those of one customer are handled")
	require.Len(t, a.Events(retry.Retried), 1)
	w.sink.inOrder(t)
	testapp.Eventually(t, func() bool { return a.Health().Subscriptions[0].OrderWaiting == 20 }, "those behind it are here")
	health := a.Health().Subscriptions[0]
	assert.Empty(t, health.Blocked)
	assert.Zero(t, health.Calls)
	assert.NoError(t, a.Health().Ready())
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

// prioritizing is a marshaler whose messages have a priority.
type prioritizing struct{ amqp.DefaultMarshaler }

func (p prioritizing) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	publishing, err := p.DefaultMarshaler.Marshal(msg)
	publishing.Priority = 9 * uint8(len(msg.Metadata.Get("urgent")))
	return publishing, err
}

// TestAPriorityOvertakesNothing in a partition, where the app's publisher sends its messages itself.
func TestAPriorityOvertakesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.AMQP.Marshaler = prioritizing{}
	all := messages(1, 10, never)
	all[9].Metadata.Set("urgent", "!")
	called, proceed := make(chan struct{}), make(chan struct{})
	a := w.start(retry.Options{Order: retry.Order{Partitions: 1}, Concurrency: 1, Prefetch: 1},
		func(msg *message.Message) error {
			if msg.UUID == all[0].UUID {
				close(called)
				<-proceed
			}
			return w.sink.handle(msg)
		})
	w.publish(a, all[:1])
	broker.Receive(t, called, "the first call")
	w.publish(a, all[1:])
	close(proceed)
	testapp.Eventually(t, func() bool { return w.sink.count() == len(all) }, "all are handled")
	w.sink.inOrder(t)
}
