package retry_test

import (
	"context"
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
	"github.com/tieredretry/watermill-retry/middleware"
)

// TestRedriveFollowsTheDocumentation: the code of docs/outcomes.md redrives a dead letter of one consumer group of a fan-out. The other
// group gets nothing again.
func TestRedriveFollowsTheDocumentation(t *testing.T) {
	t.Parallel()
	topic := broker.Name(t, "orders")
	broker.Clean(t, topic)
	group := func(name string, handler message.NoPublishHandlerFunc) *testapp.App {
		a := testapp.New(t, func(b *config.BuilderConfig) {
			b.AMQP = amqp.NewDurablePubSubConfig(broker.URL(t), amqp.GenerateQueueNameTopicNameWithSuffix(name))
			b.Prefix = "retry_" + topic
		})
		a.Handle(topic, 1, handler)
		a.Run()
		return a
	}
	processed, others := testapp.NewLedger(), testapp.NewLedger()
	var repaired atomic.Bool
	billing := group("billing", func(msg *message.Message) error {
		record, retried := middleware.ReadRecord(msg.Metadata)
		switch {
		case !repaired.Load():
			return backoff.Permanent(errDown)
		case !retried: // the redriven message has all of its retries again
			for _, key := range middleware.RecordKeys() {
				assert.NotContains(t, msg.Metadata, key)
			}
			assert.Equal(t, "7", msg.Metadata["retry_invoice"], "the app's own")
			return errDown
		}
		assert.Equal(t, 1, record.Failures)
		processed.Add(msg.UUID)
		return nil
	})
	group("shipping", func(msg *message.Message) error { others.Add(msg.UUID); return nil })
	sent := testapp.Orders(1)
	sent[0].CorrelationId = "c-1"
	sent[0].Headers["retry_invoice"] = "7"
	testapp.Send(t, topic, "", sent...)
	letters := deadLetters(t, billing.Builder, topic)
	var letter *message.Message
	select {
	case letter = <-letters:
	case <-time.After(20 * time.Second):
		t.Fatal("no dead letter")
	}
	repaired.Store(true)

	back := billing.Builder.SubscriberConfig()
	back.Exchange.GenerateName = func(string) string { return "" }
	back.Publish.GenerateRoutingKey = back.Queue.GenerateName
	back.Publish.ConfirmDelivery = true
	publisher, err := amqp.NewPublisher(back, watermill.NopLogger{})
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close()) }()
	for _, key := range middleware.RecordKeys() {
		delete(letter.Metadata, key)
	}
	letter.SetContext(context.Background())
	require.NoError(t, publisher.Publish(topic, letter))
	letter.Ack()

	processed.Wait(t, 1, 20*time.Second)
	others.Wait(t, 1, 20*time.Second)
	billing.Settle(topic)
	assert.Empty(t, processed.Twice())
	assert.Empty(t, others.Twice())
}
