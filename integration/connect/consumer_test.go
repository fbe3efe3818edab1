package connect_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestConsumerOptions: the app's options of basic.consume reach the broker.
func TestConsumerOptions(t *testing.T) {
	t.Parallel()
	s := testapp.New(t, func(b *config.Config) {
		b.AMQP.Consume.Consumer, b.AMQP.Consume.Exclusive = "shop-"+b.Prefix, true
		b.AMQP.Consume.Arguments = amqp091.Table{"x-priority": int32(7)}
		b.AMQP.Consume.Qos.PrefetchCount = 40
	})
	handle := func(*message.Message) error { return nil }
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), handle, retry.Options{Concurrency: 3})
	s.Run()
	client := broker.Management(t)
	var consumer rabbithole.ConsumerDetail
	testapp.Eventually(t, func() bool {
		// Not the list of all consumers: the client cannot read it while the statistics have a consumer whose channel is
		// closed.
		queue, err := client.GetQueue("/", s.Queue("orders"))
		if err != nil || queue.ConsumerDetails == nil || len(*queue.ConsumerDetails) == 0 {
			return false
		}
		consumer = (*queue.ConsumerDetails)[0]
		return true
	}, "the broker lists the consumer")
	assert.Equal(t, "shop-"+s.Name, consumer.ConsumerTag)
	// 4.4 states no consumer of a quorum queue as exclusive.
	assert.Equal(t, broker.Version(t) != 404, consumer.Exclusive)
	assert.EqualValues(t, 40, consumer.PrefetchCount)
	assert.EqualValues(t, 7, consumer.Arguments["x-priority"])
}
