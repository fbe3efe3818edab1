package retry_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// TestVerifyOnlyDeclaresNothing, although its user may: a deleted object stays deleted. A failed message is held until there is a tier
// again, because there is no dead-letter queue either.
func TestVerifyOnlyDeclaresNothing(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t, func(b *config.Config) { b.VerifyOnly = true }, testapp.Schedule(time.Second))
	queue := a.Queue("orders")
	tier, dead := queue+"."+a.Name+".1s", queue+".dead"
	a.Declare(queue)
	calls := testapp.NewLedger()
	processed := testapp.NewLedger()
	a.Handle(queue, 1, func(msg *message.Message) error {
		if calls.Add(msg.UUID) == 1 {
			return errDown
		}
		processed.Add(msg.UUID)
		return nil
	})
	a.Run()
	gone := func(name string) {
		t.Helper()
		_, err := broker.Channel(t).QueueDeclarePassive(name, true, false, false, false, nil)
		require.ErrorContains(t, err, "NOT_FOUND")
	}
	testapp.Delete(t, tier)
	testapp.Delete(t, dead)
	testapp.Send(t, "", queue, testapp.Orders(1)...)
	broker.Eventually(t, 60*time.Second, func() bool { return a.Log.Count("holding the message") >= 3 }, "the failed message is held")
	gone(tier)
	gone(dead)
	a.Declare(queue)
	processed.Wait(t, 1, 60*time.Second)
	assert.Equal(t, map[string]int{testapp.ID(0): 2}, calls.Counts())

	testapp.Delete(t, dead)
	require.ErrorContains(t, subscribe(t, a, queue), dead, "a subscription does not declare it either")
	reader, err := config.DeadLetterSubscriberConfig(amqp.NewDurableQueueConfig(broker.URL(t)), "")
	require.NoError(t, err)
	subscriber, err := amqp.NewSubscriber(reader, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
	require.ErrorContains(t, subscriber.SubscribeInitialize(queue), dead, "a reader of dead letters does not declare it either")
	gone(dead)
}
