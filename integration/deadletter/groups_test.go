package deadletter_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestLettersOfAFanOutComeBackToTheirOwnGroup: the other group has handled these messages, and gets none of them again.
func TestLettersOfAFanOutComeBackToTheirOwnGroup(t *testing.T) {
	t.Parallel()
	const count = 50
	topic := broker.Name(t, "orders")
	broker.Clean(t, topic)
	rabbit, err := config.Connect(config.Config{
		AMQP: amqp.NewDurablePubSubConfig(broker.URL(t),
			nil), Settings: rabbitmq.Settings{Prefix: "retry_" + topic}, Policy: retry.Policy{Schedule: backoff.Constant(100*time.Millisecond, 2)},
	}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, rabbit.Close()) }()
	var repaired atomic.Bool
	billed, failures, shipped := testapp.NewLedger(), testapp.NewLedger(), testapp.NewLedger()
	router := message.NewDefaultRouter(watermill.NopLogger{})
	rabbit.AddConsumerHandler(router, "billing", topic, func(msg *message.Message) error {
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
	rabbit.AddConsumerHandler(router, "shipping", topic, shipped.Handle, retry.Options{Group: "shipping"})
	stop := testapp.Start(t, router)
	defer stop()
	want := map[string]int{}
	for _, id := range upTo(count) {
		want[id] = 1
		require.NoError(t, rabbit.Publisher().Publish(topic, message.NewMessage(id, []byte("order "+id))))
	}
	letterQueue := deadletter.QueueOf(topic + "_billing")
	broker.Eventually(t, soon, func() bool { return testapp.Depth(t, letterQueue) == count }, "all are dead")
	shipped.Wait(t, count, soon)

	repaired.Store(true)
	summary, err := open(t, broker.URL(t), "retry_"+topic).Redrive(t.Context(), letterQueue,
		letters.Redrive{By: "ann@ops"})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: count, Done: count}, summary)
	billed.Wait(t, count, soon)
	assert.Equal(t, want, billed.Counts())
	assert.Equal(t, want, shipped.Counts())
	assert.Zero(t, testapp.Depth(t, letterQueue))
	assert.Zero(t, testapp.Depth(t, topic+"_shipping"))
}
