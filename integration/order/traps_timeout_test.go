package order_test

import (
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

// TestAloneConsumerTimeout: before 4.3 the broker closes the channel of an owner that has held a message for too long,
// and returns all, in order. RabbitMQ 4.3 cancels its consumer and returns only the messages that were held for too
// long: what is behind the others overtakes them.
func TestAloneConsumerTimeout(t *testing.T) {
	const rule = "An ordered handler closes its channel after half the timeout: it must not wait for the broker."
	broker.Alone(t)
	partial := broker.Version(t) >= 403
	if !partial { // the channel looks for messages that are held for too long
		broker.Setting(t, "channel_tick_interval", "1000")
	}
	if broker.Version(t) < 400 { // before 3.12 the argument has no effect
		broker.Setting(t, "consumer_timeout", "6000")
	}
	for timeout := 6 * time.Second; ; timeout *= 2 {
		queue := partition(t, 6, amqp091.Table{"x-consumer-timeout": timeout.Milliseconds()})
		a := hold(t, queue, 3, nil)
		canceled := a.channel.NotifyCancel(make(chan string, 1))
		closed := a.channel.NotifyClose(make(chan *amqp091.Error, 1))
		began := time.Now()
		a.gets(rule, 1, 2, 3)
		b := hold(t, queue, 3, nil)
		if partial {
			<-time.After(timeout * 2 / 3) // 1 to 3 are old, 4 is young
		}
		require.NoError(t, a.got[0].Ack(false))
		a.gets(rule, 4)
		young := time.Now()
		if !partial {
			fault := broker.Receive(t, closed, "the channel is closed. "+rule)
			require.NotNil(t, fault)
			assert.Equal(t, amqp091.PreconditionFailed, fault.Code)
			b.gets(rule, 2, 3, 4)
			return
		}
		assert.Equal(t, holderTag, broker.Receive(t, canceled, "the consumer is canceled. "+rule))
		assert.Greater(t, time.Since(began), timeout*9/10)
		if time.Since(young) > timeout*9/10 && timeout < time.Minute {
			continue // on a machine that is so slow, 4 may be old as well
		}
		b.gets("If B gets 2 3 4, the timeout keeps the order again. "+rule, 2, 3, 5)
		a.close()
		ready(t, queue, 2)
		b.settle(0)
		b.gets(rule, 4, 6)
		return
	}
}
