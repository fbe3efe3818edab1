package retry_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// letterStore returns a Store of the broker, for apps with a prefix.
func letterStore(t *testing.T, prefix string) *deadletter.Store {
	t.Helper()
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Prefix: prefix}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// redriveAll redrives the dead letters of a work queue. It needs neither the schedule nor the configuration of the app.
func redriveAll(t *testing.T, work string) (letters.Summary, error) {
	t.Helper()
	return letterStore(t, "").Redrive(t.Context(), deadletter.QueueOf(work), letters.Redrive{By: "test@example.com"})
}

// TestRedriveFollowsTheDocumentation: the code of docs/dead-letters.md redrives a dead letter of one consumer group of
// a fan-out. The other group gets nothing again.
func TestRedriveFollowsTheDocumentation(t *testing.T) {
	t.Parallel()
	topic := broker.Name(t, "orders")
	broker.Clean(t, topic)
	app := func(name string) amqp.Config {
		return amqp.NewDurablePubSubConfig(broker.URL(t), amqp.GenerateQueueNameTopicNameWithSuffix(name))
	}
	group := func(name string, handler message.NoPublishHandlerFunc) *testapp.App {
		a := testapp.New(t, func(b *config.Config) {
			b.AMQP = app(name)
			b.Prefix = "retry_" + topic
		})
		a.Handle(topic, 1, handler)
		a.Run()
		return a
	}
	redriven, processed, others := testapp.NewLedger(), testapp.NewLedger(), testapp.NewLedger()
	var repaired atomic.Bool
	billing := group("billing", func(msg *message.Message) error {
		record, retried := retry.ReadRecord(msg.Metadata)
		switch {
		case !repaired.Load():
			return backoff.Permanent(errDown)
		case !retried: // the redriven message has all of its retries again
			redriven.Add(msg.UUID)
			for _, key := range retry.RecordKeys() {
				assert.NotContains(t, msg.Metadata, key)
			}
			assert.Equal(t, "7", msg.Metadata["retry_invoice"], "the app's own")
			assert.Contains(t, msg.Metadata[recordkey.Properties], "c-1", "the correlation id")
			history, found := letters.ReadRedriven(msg.Metadata)
			assert.True(t, found, "the history of redrives")
			assert.Equal(t, 1, history.Times)
			return errDown
		}
		assert.Equal(t, 1, record.Failures)
		processed.Add(msg.UUID)
		return nil
	})
	group("shipping", others.Handle)
	sent := testapp.Orders(1)
	sent[0].CorrelationId = "c-1"
	sent[0].Headers["retry_invoice"] = "7"
	testapp.Send(t, topic, "", sent...)
	broker.Eventually(t, 60*time.Second, func() bool { return testapp.Depth(t, topic+"_billing.dead") == 1 },
		"a dead letter")
	repaired.Store(true)
	summary, err := redriveAll(t, topic+"_billing")
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 1, Done: 1}, summary)

	processed.Wait(t, 1, 60*time.Second)
	others.Wait(t, 1, 60*time.Second)
	billing.Settle(topic)
	assert.Zero(t, testapp.Depth(t, topic+"_billing.dead"))
	assert.Equal(t, map[string]int{id0: 1}, redriven.Counts())
	assert.Equal(t, redriven.Counts(), processed.Counts())
	assert.Equal(t, redriven.Counts(), others.Counts())
}
