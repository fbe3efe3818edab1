package connect_test

import (
	"sync/atomic"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// TestAQueueThatIsReplacedBeforeItIsConsumed has lost its bindings. They are looked at when it is consumed.
func TestAQueueThatIsReplacedBeforeItIsConsumed(t *testing.T) {
	t.Parallel()
	var built atomic.Int32
	a := testapp.New(t, testapp.FanOut, func(c *config.Config) {
		c.AMQP.Queue.GenerateName = func(topic string) string { return topic + "_queue" }
		c.AMQP.Queue.Arguments = amqp091.Table{"x-queue-type": "classic"}
		c.AMQP.TopologyBuilder = &amqp.SpyTopologyBuilder{After: func(queue string) {
			if built.Add(1) > 1 {
				return
			}
			other := broker.Channel(t)
			_, err := other.QueueDelete(queue, false, false, false)
			assert.NoError(t, err)
			_, err = other.QueueDeclare(queue, true, false, false, false, amqp091.Table{"x-queue-type": "classic"})
			assert.NoError(t, err)
		}}
	})
	topic, processed := a.Queue("orders"), testapp.NewLedger()
	a.AddConsumerHandler(a.Router, "billing", topic, processed.HandleRetries)
	a.Run()
	require.GreaterOrEqual(t, built.Load(), int32(1))
	a.Publish(topic, testapp.IDs(5)...) // by way of its exchange
	processed.Wait(t, 5, soon)
	assert.Zero(t, testapp.Depth(t, a.Name+".orphans"))
}
