package deadletter_test

import (
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestLettersOfAFanOutComeBackToTheirOwnGroup: the other group has handled these messages, and gets none of them again.
func TestLettersOfAFanOutComeBackToTheirOwnGroup(t *testing.T) {
	t.Parallel()
	const count = 50
	app := testapp.New(t, testapp.FanOut)
	topic := app.Queue("orders")
	var repaired atomic.Bool
	billed, failures, shipped := testapp.NewLedger(), testapp.NewLedger(), testapp.NewLedger()
	app.AddConsumerHandler(app.Router, "billing", topic, func(msg *message.Message) error {
		if !repaired.Load() {
			return backoff.Permanent(errDown)
		}
		if failures.Add(msg.UUID) == 1 { // a redriven message has all of its retries
			_, retried := retry.ReadRecord(msg.Metadata)
			assert.False(t, retried)
			return errDown
		}
		record, _ := retry.ReadRecord(msg.Metadata)
		assert.Equal(t, 1, record.Failures)
		history, _ := letters.ReadRedriven(msg.Metadata)
		assert.Equal(t, 1, history.Times)
		billed.Add(msg.UUID)
		return nil
	}, retry.Options{Group: "billing"})
	app.AddConsumerHandler(app.Router, "shipping", topic, shipped.Handle, retry.Options{Group: "shipping"})
	app.Run()
	want := map[string]int{}
	for _, id := range upTo(count) {
		want[id] = 1
	}
	app.Publish(topic, upTo(count)...)
	letterQueue := deadletter.QueueOf(topic + "_billing")
	broker.Eventually(t, soon, func() bool { return testapp.Depth(t, letterQueue) == count }, "all are dead")
	shipped.Wait(t, count, soon)

	repaired.Store(true)
	summary, err := open(t, broker.URL(t), app.Name).Redrive(t.Context(), letterQueue,
		letters.Redrive{By: "ann@ops"})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: count, Done: count}, summary)
	billed.Wait(t, count, soon)
	assert.Equal(t, want, billed.Counts())
	assert.Equal(t, want, shipped.Counts())
	assert.Zero(t, testapp.Depth(t, letterQueue))
	assert.Zero(t, testapp.Depth(t, topic+"_shipping"))
}
