package hostile_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// TestAloneHandlerThatOutlivesTheConsumerTimeout: the broker redelivers the message. A duplicate is preferred to a loss. No handler is
// called with the empty message that watermill-amqp makes of the closed consumer.
func TestAloneHandlerThatOutlivesTheConsumerTimeout(t *testing.T) {
	const timeout = 6 * time.Second
	broker.Setting(t, "channel_tick_interval", "1000") // how often a channel looks at the timeout
	about, err := broker.Management(t).Overview()
	require.NoError(t, err)
	if strings.HasPrefix(about.RabbitMQVersion, "3.") { // before 3.12 the argument has no effect
		broker.Setting(t, "consumer_timeout", strconv.Itoa(int(timeout.Milliseconds())))
	}
	a := testapp.NewParts(t, func(c *config.Config) {
		c.AMQP.Queue.Arguments = amqp091.Table{"x-consumer-timeout": timeout.Milliseconds()}
	})
	queue := a.Queue("orders")
	calls, processed, phantoms := testapp.NewLedger(), testapp.NewLedger(), testapp.NewLedger()
	again := make(chan struct{})
	a.Handle(queue, 2, func(msg *message.Message) error {
		identity := string(msg.Payload)
		if identity == "" {
			phantoms.Add("phantom")
			return nil
		}
		switch calls.Add(identity) {
		case 1:
			if strings.HasPrefix(identity, "slow") {
				<-again
			}
			return errDown // after the timeout: its copy comes as well
		case 2:
			if strings.HasPrefix(identity, "slow") {
				close(again)
			}
		}
		processed.Add(identity)
		return nil
	})
	a.Run()
	testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte("slow")})
	calls.Wait(t, 1, soon)
	began := time.Now()
	testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte("before")})
	processed.Wait(t, 1, soon) // by the other handler
	processed.Wait(t, 2, soon)
	assert.Greater(t, time.Since(began), timeout*9/10, "redelivered because of the timeout")
	testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte("after"), Headers: amqp091.Table{}})
	processed.Wait(t, 3, soon)
	broker.Eventually(t, soon, func() bool { return calls.Counts()["slow"] == 3 }, "the copy of the late failure")
	empty(t, queue)
	assert.Equal(t, map[string]int{"before": 2, "after": 2, "slow": 3}, calls.Counts())
	assert.Empty(t, phantoms.Counts())
	assert.Zero(t, testapp.Depth(t, queue+".dead"))
}
