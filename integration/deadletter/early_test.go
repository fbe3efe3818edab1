package deadletter_test

import (
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// TestALoopThatEndsEarlyKeepsTheOrder: a quorum queue puts what it gets back behind what it got back before.
func TestALoopThatEndsEarlyKeepsTheOrder(t *testing.T) {
	t.Parallel()
	const count = 300
	a := testapp.New(t)
	queue := a.Queue("parked")
	declare(t, queue, amqp091.Table{"x-queue-type": "quorum"})
	testapp.Send(t, "", queue, testapp.Orders(count)...)
	broker.Eventually(t, time.Minute, func() bool { return testapp.Depth(t, queue) == count }, "the letters")
	stated(t, queue)
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Management: broker.ManagementURL(t)},
		nil) // the limit is known
	require.NoError(t, err)
	defer store.Close()
	for range 4 {
		first := ""
		for l, err := range store.Browse(t.Context(), queue, letters.Filter{}) {
			require.NoError(t, err)
			first = l.ID
			break
		}
		assert.Equal(t, "00000", first)
	}
	summary, err := store.Discard(t.Context(), queue, letters.Discard{Limit: 3})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: count, Done: 3, Unseen: count - 3}, summary)
	var left []string
	for l, err := range store.Browse(t.Context(), queue, letters.Filter{}) {
		require.NoError(t, err)
		left = append(left, l.ID)
	}
	require.Len(t, left, count-3)
	assert.IsNonDecreasing(t, left)
}
