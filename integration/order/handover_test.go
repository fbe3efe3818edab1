package order_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// few are the options of a handler that has fetched some of the messages of a test only.
func few(prefetch int) retry.Options {
	return retry.Options{Concurrency: 2, Prefetch: prefetch, Order: retry.Order{Partitions: 1}}
}

// fetched waits until an app has as many messages of the partition as its prefetch.
func (w *world) fetched(a *app, prefetch int) {
	w.t.Helper()
	testapp.Eventually(w.t, func() bool {
		return a.Health().Subscriptions[0].Deliveries == uint64(prefetch)
	}, "%d are fetched", prefetch)
}

// holdHead starts an app that waits with the first message of a key, and has the next three.
func (w *world) holdHead() *app {
	w.t.Helper()
	w.config.Policy.Schedule = backoff.Schedule{time.Hour}
	a := w.start(few(4), func(*message.Message) error { return errDown })
	w.publish(a, messages(1, 12, never))
	w.fetched(a, 4)
	testapp.Eventually(w.t, func() bool { return len(a.Events(retry.Retried)) == 1 }, "the first one waits")
	return a
}

// A shutdown gives back what waits before another process gets what is behind it.
func TestTheHeadComesFirstAfterAShutdown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.holdHead()
	w.start(few(4), w.sink.handle)
	a.stop()
	testapp.Eventually(t, func() bool { return w.sink.count() == 12 }, "all are handled")
	w.sink.inOrder(t)
	assert.Zero(t, w.sink.rewinds)
}

// After a larger prefetch, a smaller one would give a third process what the second one had not fetched first.
func TestASmallerPrefetchIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.holdHead().stop()
	smaller := &app{App: testapp.Connect(t, w.config)}
	options := few(2)
	options.Order.Key = keyOf
	subscriber, err := smaller.Subscriber("billing", options)
	require.NoError(t, err)
	if _, err := subscriber.Subscribe(t.Context(), w.queue); err != nil {
		require.ErrorContains(t, err, "Prefetch of 4")
		return
	}
	w.fetched(smaller, 2)
	require.NoError(t, smaller.Close())
	w.start(few(2), w.sink.handle)
	testapp.Eventually(t, func() bool { return w.sink.count() == 12 }, "all are handled")
	w.sink.inOrder(t)
	t.Error("it was not refused")
}
