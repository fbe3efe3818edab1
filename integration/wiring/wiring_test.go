// Package wiring_test gives handlers the subscriber of another builder, or of no builder, on a real broker.
package wiring_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

var errDown = errors.New("the payment service is down")

const soon = time.Minute

// builder returns a second builder of an app, with its prefix and schedule.
func builder(t *testing.T, a *testapp.Parts, change ...func(*config.Config)) *config.Builder {
	t.Helper()
	c := config.Config{
		AMQP: amqp.NewDurableQueueConfig(broker.URL(t)), Policy: retry.Policy{Schedule: testapp.Delays}, Settings: rabbitmq.Settings{Prefix: a.Name},
	}
	for _, f := range change {
		f(&c)
	}
	b, err := config.NewBuilder(c)
	require.NoError(t, err)
	return b
}

func subscriber(t *testing.T, c amqp.Config, logger watermill.LoggerAdapter) message.Subscriber {
	t.Helper()
	s, err := amqp.NewSubscriber(c, logger)
	require.NoError(t, err)
	return s
}

// drained waits until a queue contains no message, neither ready nor unacknowledged.
func drained(t *testing.T, queue string) {
	t.Helper()
	client := broker.Management(t)
	broker.Eventually(t, soon, func() bool {
		info, err := broker.Queue(client, queue)
		return err == nil && info.Messages == 0 && info.MessagesUnacknowledged == 0
	}, queue+" is empty")
}

// TestWrongWireIsRefused: the middleware does not fit the subscriber of the handler. Nothing is published, the handler
// is not called, and the message stays on its queue until the wires are right.
func TestWrongWireIsRefused(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		wrong func(t *testing.T, a *testapp.Parts) amqp.Config
		log   []string
	}{
		"another builder": {
			wrong: func(t *testing.T, a *testapp.Parts) amqp.Config { return builder(t, a).SubscriberConfig() },
			log: []string{"is not one of the builder of amqp://",
				"use the subscriber of amqp.NewSubscriber(builder.SubscriberConfig(), logger)"},
		},
		"the app's own configuration": {
			wrong: func(t *testing.T, _ *testapp.Parts) amqp.Config { return amqp.NewDurableQueueConfig(broker.URL(t)) },
			log: []string{"is not one of the builder of amqp://",
				"use the subscriber of amqp.NewSubscriber(builder.SubscriberConfig(), logger)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			unprotected := func(c *config.Config) {
				c.AMQP.Queue.Arguments = amqp091.Table{"x-queue-type": "classic"} // as the app's own configuration declares it
			}
			wrong := testapp.NewParts(t, unprotected)
			queue := wrong.Queue("orders")
			channel := broker.Channel(t)
			_, err := channel.QueueDeclare(queue, true, false, false, false, nil)
			require.NoError(t, err)
			require.NoError(t, wrong.Builder.Topology(queue).DeclareRetry(channel), "a copy would find its queue")

			router := message.NewDefaultRouter(wrong.Log)
			router.AddConsumerHandler("billing", queue, subscriber(t, row.wrong(t, wrong), wrong.Log),
				func(*message.Message) error {
					t.Error("the handler is called")
					return errDown
				}).AddMiddleware(wrong.Retry.Middleware)
			stopped := make(chan error, 1)
			go func() { stopped <- router.Run(t.Context()) }()
			testapp.Send(t, "", queue, testapp.Orders(1)...)

			const refused = "The retry middleware does not fit the handler's subscriber"
			broker.Eventually(t, soon, func() bool { return wrong.Log.Count(refused) > 0 }, "the message is refused")
			line := wrong.Log.Lines(refused)[0]
			for _, words := range append(row.log, "error ", fmt.Sprintf("handler %q on topic %q", "billing", queue),
				wrong.Name) {
				assert.Contains(t, line, words)
			}
			assert.NotContains(t, line, "guest:")
			broker.Eventually(t, soon, func() bool {
				info, err := broker.Queue(broker.Management(t), queue)
				return err == nil && info.Messages == 1 && info.MessagesUnacknowledged == 1
			}, "the message is held")
			nothingWaits := func() {
				for _, q := range wrong.Builder.Topology(queue).Queues {
					assert.Zero(t, testapp.Depth(t, q.Name), "%s: nothing is published", q.Name)
				}
			}
			nothingWaits()
			require.NoError(t, router.Close())
			require.NoError(t, <-stopped)
			broker.Eventually(t, soon, func() bool { return testapp.Depth(t, queue) == 1 }, "the message is given back")
			nothingWaits()
			assert.Zero(t, wrong.Log.Count("Processing message failed"), "no loop")

			right, done := testapp.NewLedger(), testapp.NewLedger()
			wrong.Handle(queue, 1, func(msg *message.Message) error {
				if right.Add(msg.UUID) == 1 {
					return errDown
				}
				done.Add(msg.UUID)
				return nil
			})
			wrong.Run()
			done.Wait(t, 1, soon)
			drained(t, queue)
			assert.Equal(t, map[string]int{testapp.ID(0): 2}, right.Counts())
		})
	}
}

// TestClosedPublisherGivesBack at once: the app closes the publisher of the copies before its router.
func TestClosedPublisherGivesBack(t *testing.T) {
	t.Parallel()
	const messages = 8
	calls := testapp.NewLedger()
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	a.Handle(queue, messages, func(msg *message.Message) error {
		calls.Add(msg.UUID)
		return errDown
	})
	a.Run()
	require.NoError(t, a.Builder.Close())
	testapp.Send(t, "", queue, testapp.Orders(messages)...)
	testapp.Eventually(t, func() bool { return len(a.Events(retry.GivenBack)) >= 2*messages },
		"all messages are given back")
	for id, at := range calls.Times() {
		for i := 1; i < len(at); i++ {
			assert.GreaterOrEqual(t, at[i].Sub(at[i-1]), time.Second/2, "%s came back without a pause", id)
		}
	}
	given := a.Events(retry.GivenBack) // a shutdown has a reason of its own
	a.Stop()
	for _, e := range given {
		assert.Zero(t, e.Record.Failures)
		assert.ErrorIs(t, e.Err, retry.ErrClosed)
	}
	assert.Empty(t, a.Events(retry.Held))
	assert.Zero(t, testapp.Depth(t, queue+".dead"))
	left := testapp.NewLedger()
	for _, d := range testapp.Take(t, queue, messages) {
		left.Add(d.Headers["_watermill_message_uuid"].(string))
		assert.NotContains(t, d.Headers, recordkey.Failures)
	}
	assert.Equal(t, messages, left.Len())
}
