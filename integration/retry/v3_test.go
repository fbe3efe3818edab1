//go:build amqpv3

package retry_test

import (
	"sync/atomic"
	"testing"
	"time"

	amqpv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqpv3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	configv2 "github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/config/amqp3"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

// Tests of features that only v3 has.

// TestTopicConfig: the queue is bound to a topic exchange, and the topic is the binding pattern.
func TestTopicConfig(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t, func(b *amqp3.Config) {
		b.AMQP = amqpv3.NewDurableTopicConfig(broker.URL(t), "shop_"+b.Prefix, "orders_"+b.Prefix)
	})
	queue := a.Queue("orders")
	done := testapp.NewLedger()
	a.Handle("orders.*", 1, func(msg *message.Message) error {
		if record, _ := retry.ReadRecord(msg.Metadata); record.Failures < 1 || msg.UUID == testapp.ID(0) {
			return errDown
		}
		done.Add(msg.UUID)
		return nil
	})
	a.Run()
	testapp.Send(t, "shop_"+a.Name, "orders.eu", testapp.Orders(10)...)
	done.Wait(t, 9, 60*time.Second)
	letter := testapp.Take(t, queue+".dead", 1)[0]
	assert.Equal(t, string(retry.DeadReasonExhausted), letter.Headers[recordkey.DeadReason])
	a.Settle(queue)
	assert.Empty(t, done.Twice())
}

// TestAppsOfBothMajorsShareTheirQueues: each app handles retries of the other, and both declare the same queues.
func TestAppsOfBothMajorsShareTheirQueues(t *testing.T) {
	t.Parallel()
	const messages = 100
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	done := testapp.NewLedger()
	var v2, v3, handed atomic.Int64
	handler := func(mine *atomic.Int64, major string) message.NoPublishHandlerFunc {
		return func(msg *message.Message) error {
			mine.Add(1)
			record, _ := retry.ReadRecord(msg.Metadata)
			if record.Failures > 0 && record.Handler[:2] != major {
				handed.Add(1)
			}
			if record.Failures < 2 {
				return errDown
			}
			done.Add(msg.UUID)
			return nil
		}
	}
	older, err := configv2.NewBuilder(configv2.Config{
		AMQP: amqpv2.NewDurableQueueConfig(broker.URL(t)), Policy: retry.Policy{Schedule: testapp.Delays}, Settings: rabbitmq.Settings{Prefix: a.Name},
	})
	require.NoError(t, err)
	require.Equal(t, older.Topology(queue), a.Builder.Topology(queue))
	t.Cleanup(func() { require.NoError(t, older.Close()) })
	tiered, err := older.NewTieredRetry(a.Log)
	require.NoError(t, err)
	subscriber, err := amqpv2.NewSubscriber(older.SubscriberConfig(), a.Log)
	require.NoError(t, err)
	a.Router.AddConsumerHandler("v2", queue, subscriber, handler(&v2, "v2")).AddMiddleware(tiered)
	a.Router.AddConsumerHandler("v3", queue, a.Subscriber(), handler(&v3, "v3")).AddMiddleware(a.Retry)
	a.Run()
	testapp.Send(t, "", queue, testapp.Orders(messages)...)
	done.Wait(t, messages, 60*time.Second)
	a.Settle(queue)
	assert.Empty(t, done.Twice())
	assert.Zero(t, testapp.Depth(t, queue+".dead"))
	assert.EqualValues(t, 3*messages, v2.Load()+v3.Load())
	assert.NotZero(t, v2.Load())
	assert.NotZero(t, v3.Load())
	assert.NotZero(t, handed.Load(), "one app has handled a retry of the other")
}
