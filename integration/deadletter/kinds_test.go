package deadletter_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestALetterOfTheBroker: its record is in x-death, which stays when the letter is exported and imported.
func TestALetterOfTheBroker(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	a.Declare(queue) // its delivery limit is 20
	testapp.Send(t, "", queue, testapp.Orders(1)...)
	letterQueue, store := deadletter.QueueOf(queue), open(t, broker.URL(t), a.Name)
	channel := broker.Channel(t)
	broker.Eventually(t, soon, func() bool {
		for {
			d, found, err := channel.Get(queue, false)
			require.NoError(t, err)
			if !found {
				return testapp.Depth(t, letterQueue) == 1
			}
			require.NoError(t, d.Reject(true))
		}
	}, "the broker gives the message up")
	l := list(t, store, letterQueue)[0]
	assert.Equal(t, letters.Broker, l.Kind)
	assert.Equal(t, testapp.ID(0), l.ID)
	assert.Equal(t, queue, l.Target)
	assert.Equal(t, retry.DeadReason("delivery_limit"), l.Record.DeadReason)
	assert.Equal(t, 1, l.Record.Failures)
	assert.Contains(t, l.Record.Reason, queue)
	assert.WithinDuration(t, time.Now(), l.DeadAt(), time.Hour)
	assert.Equal(t, queue, l.Properties["routing_key"])

	file, err := exported(t, store, letterQueue)
	require.NoError(t, err)
	_, err = store.Import(t.Context(), file, letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, []*letters.Letter{l}, list(t, store, letterQueue))

	_, err = store.Redrive(t.Context(), letterQueue, letters.Redrive{By: "ann@ops"})
	require.NoError(t, err)
	d := testapp.Take(t, queue, 1)[0]
	for _, key := range []string{"x-death", "x-first-death-queue", "x-last-death-queue", "x-first-death-reason"} {
		assert.NotContains(t, d.Headers, key)
	}
	history, redriven := letters.ReadRedriven(message.Metadata{recordkey.Redriven: d.Headers[recordkey.Redriven].(string)})
	require.True(t, redriven)
	assert.Equal(t, retry.DeadReason("delivery_limit"), history.Redrives[0].DeadReason)
	assert.Equal(t, "ann@ops", history.Redrives[0].By)
}
