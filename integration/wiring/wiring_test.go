// Package wiring_test gives handlers the subscriber or the middleware of another builder, or no middleware, on a real broker.
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

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

var errDown = errors.New("the payment service is down")

const soon = time.Minute

// builder returns a second builder of an app, with its prefix and schedule.
func builder(t *testing.T, a *testapp.App, change ...func(*config.BuilderConfig)) *config.Builder {
	t.Helper()
	c := config.BuilderConfig{
		AMQP: amqp.NewDurableQueueConfig(broker.URL(t)), Schedule: a.Builder.TieredRetryConfig(nil).Schedule, Settings: rabbitmq.Settings{Prefix: a.Name},
	}
	for _, f := range change {
		f(&c)
	}
	b, err := config.NewBuilder(c)
	require.NoError(t, err)
	return b
}

// group is a consumer group of a fan-out.
func group(t *testing.T, name string) func(*config.BuilderConfig) {
	return func(c *config.BuilderConfig) {
		c.AMQP = amqp.NewDurablePubSubConfig(broker.URL(t), amqp.GenerateQueueNameTopicNameWithSuffix(name))
	}
}

func subscriber(t *testing.T, c amqp.Config, logger watermill.LoggerAdapter) message.Subscriber {
	t.Helper()
	s, err := amqp.NewSubscriber(c, logger)
	require.NoError(t, err)
	return s
}

// TestRouterMiddlewareOfOneGroup: two consumer groups, each with a builder, share the middleware of one of them.
func TestRouterMiddlewareOfOneGroup(t *testing.T) {
	t.Parallel()
	const messages = 30
	a := testapp.New(t, group(t, "email"))
	analytics := builder(t, a, group(t, "analytics"))
	topic := a.Queue("orders")
	got := map[string]*testapp.Ledger{"email": testapp.NewLedger(), "analytics": testapp.NewLedger()}
	done := testapp.NewLedger()

	a.Router.AddMiddleware(a.Retry.Middleware)
	a.Router.AddConsumerHandler("email", topic, a.Subscriber(), func(msg *message.Message) error {
		got["email"].Add(msg.UUID)
		return nil
	})
	a.Router.AddConsumerHandler("analytics", topic, subscriber(t, analytics.SubscriberConfig(), a.Log), func(msg *message.Message) error {
		tries := got["analytics"].Add(msg.UUID)
		switch {
		case msg.UUID == testapp.ID(0): // it becomes a dead letter
			return errDown
		case msg.UUID <= testapp.ID(9) && tries == 1:
			return errDown
		}
		done.Add(msg.UUID)
		return nil
	})
	a.Run()
	testapp.Send(t, topic, "", testapp.Orders(messages)...)

	done.Wait(t, messages-1, soon)
	letter := testapp.Take(t, topic+"_analytics.dead", 1)[0]
	assert.Equal(t, testapp.ID(0), letter.Headers["_watermill_message_uuid"])
	assert.Equal(t, "analytics", letter.Headers[retry.HandlerKey])
	got["email"].Wait(t, messages, soon)
	want := map[string]map[string]int{"email": {}, "analytics": {}}
	for i := range messages {
		want["email"][testapp.ID(i)], want["analytics"][testapp.ID(i)] = 1, 1
		if i <= 9 {
			want["analytics"][testapp.ID(i)] = 2
		}
	}
	want["analytics"][testapp.ID(0)] = 3
	for _, b := range []*config.Builder{a.Builder, analytics} {
		drained(t, b.Topology(topic).WorkQueue.Name)
		for _, queue := range b.Topology(topic).Queues {
			assert.Zero(t, testapp.Depth(t, queue.Name), queue.Name)
		}
	}
	for name, ledger := range got {
		assert.Equal(t, want[name], ledger.Counts(), name)
	}
	assert.Empty(t, a.Log.Lines("does not fit"))
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

// TestWrongWireIsRefused: the middleware does not fit the subscriber of the handler. Nothing is published, the handler is not
// called, and the message stays on its queue until the wires are right.
func TestWrongWireIsRefused(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		wrong func(t *testing.T, a *testapp.App) amqp.Config
		log   []string
	}{
		"another prefix": {
			wrong: func(t *testing.T, a *testapp.App) amqp.Config {
				return builder(t, a, func(c *config.BuilderConfig) { c.Prefix += "_other" }).SubscriberConfig()
			},
			log: []string{"_other)", "publishes elsewhere", "add to each handler the middleware of its own subscriber"},
		},
		"another schedule": {
			wrong: func(t *testing.T, a *testapp.App) amqp.Config {
				return builder(t, a, testapp.Schedule(100*time.Millisecond)).SubscriberConfig()
			},
			log: []string{"has not declared the tier 300ms", "add to each handler the middleware of its own subscriber", "the same schedule"},
		},
		"the app's own configuration": {
			wrong: func(t *testing.T, _ *testapp.App) amqp.Config { return amqp.NewDurableQueueConfig(broker.URL(t)) },
			log:   []string{"is not one of the builder of amqp://", "use the subscriber of amqp.NewSubscriber(builder.SubscriberConfig(), logger)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			unprotected := func(c *config.BuilderConfig) {
				c.AMQP.Queue.Arguments = amqp091.Table{"x-queue-type": "classic"} // as the app's own configuration declares it
			}
			wrong := testapp.New(t, unprotected)
			queue := wrong.Queue("orders")
			channel := broker.Channel(t)
			_, err := channel.QueueDeclare(queue, true, false, false, false, nil)
			require.NoError(t, err)
			require.NoError(t, wrong.Builder.Topology(queue).DeclareRetry(channel), "a copy would find its queue")

			router := message.NewDefaultRouter(wrong.Log)
			router.AddConsumerHandler("billing", queue, subscriber(t, row.wrong(t, wrong), wrong.Log), func(*message.Message) error {
				t.Error("the handler is called")
				return errDown
			}).AddMiddleware(wrong.Retry.Middleware)
			stopped := make(chan error, 1)
			go func() { stopped <- router.Run(t.Context()) }()
			testapp.Send(t, "", queue, testapp.Orders(1)...)

			const refused = "The retry middleware does not fit the handler's subscriber"
			broker.Eventually(t, soon, func() bool { return wrong.Log.Count(refused) > 0 }, "the message is refused")
			line := wrong.Log.Lines(refused)[0]
			for _, words := range append(row.log, "error ", fmt.Sprintf("handler %q on topic %q", "billing", queue), wrong.Name) {
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

// TestWithoutTheMiddleware: a handler of the builder's subscriber has no retry middleware, and nacks. The message comes back
// after a pause, and a handler with the middleware is not affected.
func TestWithoutTheMiddleware(t *testing.T) {
	t.Parallel()
	const watched = 5 * time.Second
	most := func(since time.Time) int { return 2 * (8 + int(time.Since(since).Seconds())) } // by two handlers: 10 ms to 640 ms, then one a second
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a := testapp.New(t, func(c *config.BuilderConfig) {
				c.AMQP.Queue.Arguments = amqp091.Table{"x-queue-type": kind, "x-delivery-limit": int64(1000)}
				if kind == "classic" {
					delete(c.AMQP.Queue.Arguments, "x-delivery-limit")
				}
				c.Schedule = backoff.Constant(50*time.Millisecond, 3)
			})
			with, without := a.Queue("with"), a.Queue("without")
			s := a.Subscriber()
			failed, done := testapp.NewLedger(), testapp.NewLedger()
			for i := range 2 {
				a.Router.AddConsumerHandler(fmt.Sprintf("without/%d", i), without, s, func(msg *message.Message) error {
					failed.Add(msg.UUID)
					return errDown
				})
				a.Router.AddConsumerHandler(fmt.Sprintf("with/%d", i), with, s, func(msg *message.Message) error {
					if record, _ := retry.ReadRecord(msg.Metadata); record.Failures < 3 {
						return errDown
					}
					done.Add(msg.UUID)
					return nil
				}).AddMiddleware(a.Retry.Middleware)
			}
			a.Run()
			begin := time.Now()
			testapp.Send(t, "", without, testapp.Orders(1)...)
			broker.Eventually(t, soon, func() bool { return failed.Counts()[testapp.ID(0)] > 2 }, "the message comes back")
			testapp.Send(t, "", with, testapp.Orders(50)...)
			<-time.After(watched) // the time in which deliveries are counted
			count := failed.Counts()[testapp.ID(0)]
			assert.LessOrEqual(t, count, most(begin), "deliveries in %v", time.Since(begin))
			done.Wait(t, 50, soon)
			drained(t, with)
			assert.Empty(t, done.Twice())

			const text = "has no retry middleware"
			require.Equal(t, 1, a.Log.Warnings(text), "%v", a.Log.Lines(text))
			for _, words := range []string{without, "handler.AddMiddleware(retry.Middleware)", "(prefix " + a.Name + ")"} {
				assert.Contains(t, a.Log.Lines(text)[0], words)
			}
		})
	}
}
