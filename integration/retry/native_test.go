package retry_test

import (
	"errors"
	"maps"
	"regexp"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// nativeQueue declares a work queue with delayed retry, whose k-th failure waits for k times the delay, and a queue for
// its dead letters.
func nativeQueue(t *testing.T, delay time.Duration, more amqp091.Table) (queue string, arguments amqp091.Table) {
	t.Helper()
	arguments = amqp091.Table{
		"x-queue-type": "quorum", "x-delayed-retry-type": "failed", "x-delayed-retry-min": delay.Milliseconds(),
		"x-delayed-retry-max": 100 * delay.Milliseconds(), "x-delivery-limit": int64(2),
	}
	maps.Copy(arguments, more)
	return generationQueue(t, arguments), arguments
}

// fetch consumes a queue on a connection of its own, and returns n deliveries.
func fetch(t *testing.T, queue string, n int) (*amqp091.Channel, []amqp091.Delivery) {
	t.Helper()
	channel := broker.Channel(t)
	require.NoError(t, channel.Qos(n, 0, false))
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	require.NoError(t, err)
	var all []amqp091.Delivery
	for range n {
		all = append(all, broker.Receive(t, deliveries, "a delivery"))
	}
	return channel, all
}

// fail rejects n messages of a queue once, as a consumer does whose handler has failed.
func fail(t *testing.T, queue string, n int) {
	t.Helper()
	channel, all := fetch(t, queue, n)
	for _, d := range all {
		require.NoError(t, d.Reject(true))
	}
	require.NoError(t, channel.Close())
}

// TestNativeRetry shows why the library does not use the delayed retry of RabbitMQ 4.3: docs/brokers.md. Where a later
// RabbitMQ keeps one of these promises, its test fails. Generations before it ignore the arguments.
func TestNativeRetry(t *testing.T) {
	t.Parallel()
	if is(t, nativeDelays, "ignored") {
		queue, _ := nativeQueue(t, time.Hour, nil)
		testapp.Send(t, "", queue, testapp.Orders(1)...)
		fail(t, queue, 1)
		fetch(t, queue, 1) // at once
		return
	}
	const long, waiting = 10 * time.Second, 10
	lost := func(remove func(t *testing.T, queue string, arguments amqp091.Table)) func(t *testing.T) {
		return func(t *testing.T) {
			t.Parallel()
			queue, arguments := nativeQueue(t, long, nil)
			testapp.Send(t, "", queue, testapp.Orders(waiting)...)
			fail(t, queue, waiting)
			remove(t, queue, arguments)
			testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte("later")})
			fail(t, queue, 1)
			_, back := fetch(t, queue, 1) // what has failed before it would come back before it
			assert.Equal(t, "later", string(back[0].Body), "this message has survived: docs/brokers.md")
			assert.Zero(t, testapp.Depth(t, queue)+testapp.Depth(t, queue+".dead"), "nor are they dead letters")
		}
	}
	for name, test := range map[string]func(t *testing.T){
		"what waits is lost with its queue": lost(func(t *testing.T, queue string, arguments amqp091.Table) {
			counted, err := broker.Channel(t).QueueDelete(queue, false, false, false)
			require.NoError(t, err)
			assert.Zero(t, counted, "those that wait are not counted")
			existing(t, queue, arguments)
		}),
		"what waits is lost at a purge": lost(func(t *testing.T, queue string, _ amqp091.Table) {
			counted, err := broker.Channel(t).QueuePurge(queue, false)
			require.NoError(t, err)
			assert.Equal(t, waiting, counted)
		}),
		"a lost connection is a failure of what no handler has had, and there is no record": func(t *testing.T) {
			t.Parallel()
			queue, _ := nativeQueue(t, 300*time.Millisecond, nil)
			testapp.Send(t, "", queue, amqp091.Publishing{})
			var left time.Time
			for losses := range 3 {
				channel, all := fetch(t, queue, 1)
				if losses > 0 {
					assert.EqualValues(t, losses, all[0].Headers["x-delivery-count"])
					assert.Subset(t, []string{"x-acquired-count", "x-delivery-count"}, headersOf(all[0]))
					assert.GreaterOrEqual(t, time.Since(left), broker.Least(time.Duration(losses)*300*time.Millisecond))
				}
				left = time.Now()
				require.NoError(t, channel.Close())
			}
			assert.Equal(t, "delivery_limit", testapp.Take(t, queue+".dead", 1)[0].Headers["x-first-death-reason"])
		},
		"an expiration goes on": func(t *testing.T) {
			t.Parallel()
			queue, _ := nativeQueue(t, long, nil)
			testapp.Send(t, "", queue, amqp091.Publishing{Expiration: "4000"})
			fail(t, queue, 1)
			assert.Equal(t, "expired", testapp.Take(t, queue+".dead", 1)[0].Headers["x-first-death-reason"])
		},
		"what waits fills the queue, and the broker drops new messages that it has confirmed": func(t *testing.T) {
			t.Parallel()
			queue, _ := nativeQueue(t, long, amqp091.Table{"x-max-length": int64(waiting), "x-overflow": "drop-head"})
			all := testapp.Orders(2 * waiting)
			testapp.Send(t, "", queue, all[:waiting]...)
			fail(t, queue, waiting)
			testapp.Send(t, "", queue, all[waiting:]...)
			testapp.Take(t, queue+".dead", waiting)
			for _, d := range testapp.Take(t, queue, waiting) {
				assert.Less(t, string(d.Body), string(all[waiting].Body))
			}
		},
		"another schedule is another argument": func(t *testing.T) {
			t.Parallel()
			queue, arguments := nativeQueue(t, long, nil)
			arguments["x-delayed-retry-min"] = int64(2000)
			_, err := broker.Channel(t).QueueDeclare(queue, true, false, false, false, arguments)
			assert.ErrorContains(t, err, "inequivalent arg 'x-delayed-retry-")
		},
	} {
		t.Run(name, test)
	}
}

func headersOf(d amqp091.Delivery) (keys []string) {
	for key := range d.Headers {
		keys = append(keys, key)
	}
	return keys
}

// setNativePolicy sets the policy of docs/brokers.md for one queue, until the test ends. It returns the broker's
// refusal.
func setNativePolicy(t *testing.T, queue string, delay time.Duration) error {
	t.Helper()
	response, err := broker.Management(t).PutPolicy("/", queue, rabbithole.Policy{
		Pattern: "^" + regexp.QuoteMeta(queue) + "$", ApplyTo: "quorum_queues", Definition: map[string]any{
			"delayed-retry-type": "all", "delayed-retry-min": delay.Milliseconds(), "delayed-retry-max": delay.Milliseconds(),
		},
	})
	if err != nil {
		return err
	}
	t.Cleanup(func() { testapp.DeletePolicy(t, queue) })
	require.NoError(t, response.Body.Close())
	if response.StatusCode >= 300 {
		return errors.New(response.Status)
	}
	return nil
}

// TestNativeRetryWithoutTheLibrary runs the Example of docs/brokers.md: watermill-amqp's own subscriber, the policy,
// and dead letters by Watermill's PoisonQueue.
func TestNativeRetryWithoutTheLibrary(t *testing.T) {
	t.Parallel()
	const messages, tries, delay = 20, 3, 300 * time.Millisecond
	queue := broker.Name(t, "native")
	broker.Clean(t, queue)
	existing(t, queue, amqp091.Table{"x-queue-type": "quorum"})
	existing(t, queue+".poison", amqp091.Table{"x-queue-type": "quorum"})
	err := setNativePolicy(t, queue, delay)
	if is(t, nativeDelays, "ignored") {
		require.Error(t, err, "the broker refuses the policy")
		return
	}
	require.NoError(t, err)

	app := nativeConfig(broker.URL(t))
	subscriber, err := amqp.NewSubscriber(app, watermill.NopLogger{})
	require.NoError(t, err)
	publisher, err := amqp.NewPublisher(app, watermill.NopLogger{})
	require.NoError(t, err)
	poison, err := wmiddleware.PoisonQueue(publisher, queue+".poison")
	require.NoError(t, err)
	router, failed := message.NewDefaultRouter(watermill.NopLogger{}), testapp.NewLedger()
	router.AddConsumerHandler("billing", queue, subscriber, func(msg *message.Message) error {
		failed.Add(msg.UUID)
		return errDown
	}).AddMiddleware(giveUp(poison, tries))
	stop := testapp.Start(t, router)
	testapp.Send(t, "", queue, testapp.Orders(messages)...)
	for _, d := range testapp.Take(t, queue+".poison", messages) {
		assert.Equal(t, errDown.Error(), d.Headers[wmiddleware.ReasonForPoisonedKey])
	}
	stop()
	require.NoError(t, publisher.Close())
	assert.Equal(t, messages, failed.Len())
	for identity, times := range failed.Times() {
		require.Len(t, times, tries, identity)
		for i := 1; i < tries; i++ {
			assert.GreaterOrEqual(t, times[i].Sub(times[i-1]), broker.Least(delay), identity)
		}
	}
}
