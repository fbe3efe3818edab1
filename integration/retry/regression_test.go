package retry_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestReplacedWorkQueueIsBoundAgain: watermill-amqp's subscriber consumes the new queue, and declares only once before
// it does.
func TestReplacedWorkQueueIsBoundAgain(t *testing.T) {
	t.Parallel()
	const messages = 50
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	tries, processed := testapp.NewLedger(), testapp.NewLedger()
	a.Handle(queue, 1, func(msg *message.Message) error {
		if tries.Add(msg.UUID) == 1 {
			return errDown
		}
		processed.Add(msg.UUID)
		return nil
	})
	a.Run()
	connection := broker.Connect(t)
	broker.Eventually(t, 60*time.Second, func() bool {
		channel, err := connection.Channel()
		require.NoError(t, err)
		defer channel.Close()
		state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil || state.Consumers == 0 {
			return false
		}
		_, err = channel.QueueDelete(queue, false, false, false)
		require.NoError(t, err)
		_, err = channel.QueueDeclare(queue, true, false, false, false, amqp091.Table{"x-queue-type": "classic"})
		return err == nil
	}, "the queue has other arguments before the subscriber declares it again")
	testapp.Send(t, "", queue, testapp.Orders(messages)...)
	processed.Wait(t, messages, 60*time.Second)
	a.Settle(queue)
	assert.Empty(t, processed.Twice())
	assert.Zero(t, testapp.Depth(t, a.Name+".orphans"))
}

// TestNilBindingKeyIsRefused by Subscribe on v2, which needs none without an exchange, and by NewBuilder on v3.
func TestNilBindingKeyIsRefused(t *testing.T) {
	t.Parallel()
	app := amqp.NewDurablePubSubConfig(broker.URL(t), amqp.GenerateQueueNameTopicNameWithSuffix("billing"))
	app.QueueBind.GenerateRoutingKey = nil
	_, err := config.NewBuilder(config.Config{AMQP: app, Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 1)}})
	if amqp.Major == "v2" {
		require.NoError(t, err)
		a := testapp.NewParts(t, func(b *config.Config) { b.AMQP = app })
		err = subscribe(t, a, a.Queue("orders"))
	}
	assert.ErrorContains(t, err, "GenerateRoutingKey is nil")
}
