package order_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

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
