package retry_test

import (
	"regexp"
	"strings"
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
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestVerifyOnlyDeclaresNothing: a deleted object stays deleted. A failed message is held until there is a tier again,
// because there is no dead-letter queue either.
func TestVerifyOnlyDeclaresNothing(t *testing.T) {
	testapp.OnModel(t, func(t *testing.T, b *model.Broker, c config.Config) {
		subscribes := func(verifyOnly bool) error {
			own := c
			own.VerifyOnly = verifyOnly
			s, err := testapp.Connect(t, own).Subscriber("other")
			require.NoError(t, err)
			return s.(message.SubscribeInitializer).SubscribeInitialize("orders")
		}
		require.NoError(t, subscribes(false))
		own := c
		own.VerifyOnly = true
		a, calls := testapp.Connect(t, own), testapp.NewLedger()
		a.Handle("orders", 1, func(msg *message.Message) error {
			if calls.Add(msg.UUID) == 1 {
				return errDown
			}
			return nil
		})
		a.Run()
		for _, gone := range []string{"orders.retry.1s", "orders.dead"} {
			require.True(t, b.DeleteQueue(gone, false))
		}
		left := b.Queues()
		a.Publish("orders", "1")
		time.Sleep(time.Minute)
		require.Len(t, a.Events(retry.Retried), 0)
		assert.Positive(t, a.Log.Count("holding the message"))
		assert.ErrorContains(t, subscribes(true), "orders.dead")
		assert.Equal(t, left, b.Queues())
		require.NoError(t, subscribes(false))
		time.Sleep(2 * time.Minute)
		assert.Equal(t, map[string]int{"1": 2}, calls.Counts())
	}, testapp.Schedule(time.Second))
}

// reader returns a subscriber of dead letters.
func reader(t *testing.T, app amqp.Config, group string, log watermill.LoggerAdapter) message.Subscriber {
	t.Helper()
	c, err := config.DeadLetterSubscriberConfig(app, group)
	require.NoError(t, err)
	s, err := amqp.NewSubscriber(c, log)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// TestReaderOfAMissingQueueIsRefused.
func TestReaderOfAMissingQueueIsRefused(t *testing.T) {
	t.Parallel()
	b, c := testapp.Model(t)
	s := reader(t, c.AMQP, "", watermill.NopLogger{})
	_, err := s.Subscribe(t.Context(), "orders")
	for _, text := range []string{
		`the dead letters of topic "orders": the queue "orders.dead" does not exist`, "declares nothing", "correct the topic or Queue.GenerateName",
		"start the app", "404",
	} {
		assert.ErrorContains(t, err, text)
	}
	_, err = s.Subscribe(t.Context(), "orders.dead")
	assert.ErrorContains(t, err, `work queue "orders.dead" has the name of a dead-letter queue: subscribe to the topic of work queue "orders"`)
	_, err = s.Subscribe(t.Context(), "")
	assert.ErrorContains(t, err, "the work queue has no name")
	dialing := c.AMQP.Connection.AmqpConfig
	testapp.FanOut(&c)
	c.AMQP.Connection.AmqpConfig = dialing
	_, err = reader(t, c.AMQP, "mailing", watermill.NopLogger{}).Subscribe(t.Context(), "orders")
	assert.ErrorContains(t, err, `correct the topic or the group "mailing"`)
	assert.Empty(t, b.Queues(), "it has declared nothing")
}

// TestReaderOfADeletedQueueReadsOn after the app has declared the queue again. It does not declare it.
func TestReaderOfADeletedQueueReadsOn(t *testing.T) {
	t.Parallel()
	a, log := testapp.NewParts(t), &testapp.Log{}
	queue := a.Queue("orders")
	a.Declare(queue)
	letters, err := reader(t, amqp.NewDurableQueueConfig(broker.URL(t)), "", log).Subscribe(t.Context(), queue)
	require.NoError(t, err)
	reads := func() {
		t.Helper()
		testapp.Send(t, "", queue+".dead", testapp.Orders(1)...)
		broker.Receive(t, letters, "a letter").Ack()
	}
	reads()
	testapp.Delete(t, queue+".dead")
	testapp.Eventually(t, func() bool { return log.Count(`the queue "`+queue+`.dead" does not exist`) > 0 }, "the error is logged")
	assert.False(t, testapp.Exists(t, queue+".dead"))
	a.Declare(queue)
	reads()
}

// policyIn returns the command in a text that sets a policy, and behind it the policy's name, pattern and definition.
func policyIn(t *testing.T, text string) []string {
	t.Helper()
	command := regexp.MustCompile(`rabbitmqctl set_policy -p '/' --apply-to queues '([^']+)' '([^']+)' '([^']+)'`).FindStringSubmatch(text)
	require.NotNil(t, command, text)
	require.Equal(t, 1, strings.Count(text, "rabbitmqctl set_policy"), text)
	return command
}
