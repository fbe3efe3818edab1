package retry_test

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"sync"
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

// The tests of this file show why the library does not use the delayed retry of RabbitMQ 4.3: docs/brokers.md. Where a
// later RabbitMQ keeps one of these promises, its test fails. Generations before it ignore the arguments, which the
// tests check there.

// nativeArguments are those of a work queue whose k-th failure waits for k times the delay.
func nativeArguments(delay time.Duration, limit int64) amqp091.Table {
	return amqp091.Table{
		"x-queue-type": "quorum", "x-delayed-retry-type": "failed",
		"x-delayed-retry-min": delay.Milliseconds(), "x-delayed-retry-max": 100 * delay.Milliseconds(), "x-delivery-limit": limit,
	}
}

// nativeQueue declares a work queue with delayed retry, and a queue for its dead letters.
func nativeQueue(t *testing.T, delay time.Duration, limit int64) (queue, dead string, arguments amqp091.Table) {
	t.Helper()
	queue = broker.Name(t, "native")
	dead = queue + ".dead"
	broker.Clean(t, queue)
	existing(t, dead, amqp091.Table{"x-queue-type": "quorum"})
	arguments = nativeArguments(delay, limit)
	arguments["x-dead-letter-exchange"], arguments["x-dead-letter-routing-key"] = "", dead
	arguments["x-dead-letter-strategy"], arguments["x-overflow"] = "at-least-once", "reject-publish"
	existing(t, queue, arguments)
	return queue, dead, arguments
}

// fetch consumes a queue without acknowledging, with room for so many messages.
func fetch(t *testing.T, channel *amqp091.Channel, queue string, prefetch int) <-chan amqp091.Delivery {
	t.Helper()
	require.NoError(t, channel.Qos(prefetch, 0, false))
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	require.NoError(t, err)
	return deliveries
}

// fail rejects so many messages of a queue once, as a consumer does whose handler has failed.
func fail(t *testing.T, queue string, n int) {
	t.Helper()
	channel := broker.Channel(t)
	deliveries := fetch(t, channel, queue, n)
	var all []amqp091.Delivery
	for range n {
		all = append(all, broker.Receive(t, deliveries, "a delivery"))
	}
	for _, d := range all {
		require.NoError(t, d.Reject(true))
	}
	require.NoError(t, channel.Close())
}

// TestNativeRetryIsLostWithItsQueue: a message that waits is in the work queue, and is destroyed with what is in there.
// One queue is deleted, one is purged.
func TestNativeRetryIsLostWithItsQueue(t *testing.T) {
	t.Parallel()
	const waiting = 100
	g := generationOf(t)
	var waits []func()
	for _, purged := range []bool{false, true} {
		queue, dead, arguments := nativeQueue(t, 10*time.Second, 20)
		testapp.Send(t, "", queue, testapp.Orders(waiting)...)
		fail(t, queue, waiting)
		if g.nativeDelays {
			assert.Zero(t, testapp.Depth(t, queue), "they wait")
		} else {
			broker.Eventually(t, time.Minute, func() bool { return testapp.Depth(t, queue) == waiting }, "nothing waits")
		}
		if purged {
			counted, err := broker.Channel(t).QueuePurge(queue, false)
			require.NoError(t, err)
			assert.Equal(t, waiting, counted)
		} else {
			counted, err := broker.Channel(t).QueueDelete(queue, false, false, false)
			require.NoError(t, err)
			existing(t, queue, arguments)
			assert.Equal(t, g.nativeDelays, counted == 0, "the broker counts %d: those that wait are not counted", counted)
		}
		testapp.Send(t, "", queue, amqp091.Publishing{MessageId: "later"})
		deliveries := fetch(t, broker.Channel(t), queue, 2*waiting)
		later := broker.Receive(t, deliveries, "the later message")
		require.Equal(t, "later", later.MessageId)
		require.NoError(t, later.Reject(true))
		waits = append(waits, func() { // what has failed before it would come back before it
			d := broker.Receive(t, deliveries, "the later message is back")
			assert.Equal(t, "later", d.MessageId, "this message has survived: docs/brokers.md")
			assert.Empty(t, deliveries)
			assert.Zero(t, testapp.Depth(t, dead), "nor are they dead letters")
		})
	}
	for _, wait := range waits {
		wait()
	}
}

// TestNativeRetryCountsLostConnections: the broker counts, and delays, what no handler has had.
func TestNativeRetryCountsLostConnections(t *testing.T) {
	t.Parallel()
	const (
		fetched = 16
		retries = 3
		delay   = 300 * time.Millisecond
	)
	g := generationOf(t)
	queue, dead, _ := nativeQueue(t, delay, retries)
	testapp.Send(t, "", queue, testapp.Orders(fetched)...)
	var lost time.Time
	for losses := range retries + 1 {
		connection, err := amqp091.Dial(broker.URL(t))
		require.NoError(t, err)
		channel, err := connection.Channel()
		require.NoError(t, err)
		deliveries := fetch(t, channel, queue, fetched)
		came := testapp.NewLedger()
		for range fetched {
			d := broker.Receive(t, deliveries, "a delivery")
			came.Add(string(d.Body))
			if losses == 0 {
				continue
			}
			assert.EqualValues(t, losses, d.Headers["x-delivery-count"])
			if g.nativeDelays {
				assert.GreaterOrEqual(t, time.Since(lost), broker.Least(time.Duration(losses)*delay))
			}
		}
		assert.Equal(t, fetched, came.Len())
		lost = time.Now()
		require.NoError(t, connection.Close())
	}
	letters := testapp.NewLedger()
	for _, d := range testapp.Take(t, dead, fetched) {
		letters.Add(string(d.Body))
		assert.Equal(t, "delivery_limit", d.Headers["x-first-death-reason"])
	}
	assert.Equal(t, fetched, letters.Len())
}

// TestNativeRetryKeepsNoRecord: what comes back has counts, and neither a reason nor a time.
func TestNativeRetryKeepsNoRecord(t *testing.T) {
	t.Parallel()
	queue, _, _ := nativeQueue(t, 300*time.Millisecond, 20)
	sent := testapp.Orders(1)
	testapp.Send(t, "", queue, sent...)
	deliveries := fetch(t, broker.Channel(t), queue, 1)
	require.NoError(t, broker.Receive(t, deliveries, "a delivery").Reject(true))
	again := broker.Receive(t, deliveries, "the second delivery")
	for key := range again.Headers {
		if _, own := sent[0].Headers[key]; !own {
			assert.Contains(t, []string{"x-acquired-count", "x-delivery-count"}, key)
		}
	}
	assert.EqualValues(t, 1, again.Headers["x-delivery-count"])
}

// TestNativeRetryAndExpiration: an expiration that the publisher has set goes on while the message waits, which then is
// not delivered again.
func TestNativeRetryAndExpiration(t *testing.T) {
	t.Parallel()
	g := generationOf(t)
	queue, dead, _ := nativeQueue(t, 6*time.Second, 20)
	deliveries := fetch(t, broker.Channel(t), queue, 1)
	testapp.Send(t, "", queue, amqp091.Publishing{MessageId: "order", Expiration: "4000"})
	require.NoError(t, broker.Receive(t, deliveries, "a delivery").Reject(true))
	if !g.nativeDelays {
		require.NoError(t, broker.Receive(t, deliveries, "the second delivery, at once").Ack(false))
		return
	}
	letter := testapp.Take(t, dead, 1)[0]
	assert.Equal(t, "expired", letter.Headers["x-first-death-reason"])
	assert.Empty(t, deliveries, "it did not come back")
}

// TestNativeRetryAndALengthLimit: messages that wait fill the queue, and the broker drops new ones that it has
// confirmed.
func TestNativeRetryAndALengthLimit(t *testing.T) {
	t.Parallel()
	const limit = 10
	g := generationOf(t)
	queue := broker.Name(t, "native")
	broker.Clean(t, queue)
	arguments := nativeArguments(10*time.Second, 20)
	arguments["x-max-length"], arguments["x-overflow"] = int64(limit), "drop-head"
	existing(t, queue, arguments)
	all := testapp.Orders(2 * limit)
	testapp.Send(t, "", queue, all[:limit]...)
	fail(t, queue, limit)
	if !g.nativeDelays {
		broker.Eventually(t, time.Minute, func() bool { return testapp.Depth(t, queue) == limit }, "nothing waits")
	}
	testapp.Send(t, "", queue, all[limit:]...) // all confirmed

	left := testapp.NewLedger()
	for _, d := range testapp.Take(t, queue, limit) {
		left.Add(string(d.Body))
	}
	for i, m := range all {
		if old := i < limit; old == g.nativeDelays {
			assert.Contains(t, left.Counts(), string(m.Body))
		} else {
			assert.NotContains(t, left.Counts(), string(m.Body))
		}
	}
	assert.Zero(t, testapp.Depth(t, queue))
}

// TestNativeRetryAndAChangedSchedule: the schedule is a part of the work queue's arguments, which cannot change.
func TestNativeRetryAndAChangedSchedule(t *testing.T) {
	t.Parallel()
	g := generationOf(t)
	_, _, before := nativeQueue(t, time.Second, 20)
	for name, change := range map[string]func(amqp091.Table){
		"another delay": func(a amqp091.Table) { a["x-delayed-retry-min"] = int64(2000) },
		"no delayed retry": func(a amqp091.Table) {
			maps.DeleteFunc(a, func(key string, _ any) bool { return slices.Contains(delayedRetry, key) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue, _, _ := nativeQueue(t, time.Second, 20)
			after := maps.Clone(before)
			after["x-dead-letter-routing-key"] = queue + ".dead"
			change(after)
			_, err := broker.Channel(t).QueueDeclare(queue, true, false, false, false, after)
			if g.nativeDelays {
				assert.ErrorContains(t, err, "inequivalent arg 'x-delayed-retry-")
			} else {
				assert.NoError(t, err, "the arguments are ignored")
			}
		})
	}
}

var delayedRetry = []string{"x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max"}

// setNativePolicy sets the policy of docs/brokers.md for one queue, until the test ends. It returns the broker's
// refusal.
func setNativePolicy(t *testing.T, queue, kind string, delay time.Duration) error {
	t.Helper()
	response, err := broker.Management(t).PutPolicy("/", queue, rabbithole.Policy{
		Pattern: "^" + regexp.QuoteMeta(queue) + "$", ApplyTo: "quorum_queues", Definition: map[string]any{
			"delayed-retry-type": kind, "delayed-retry-min": delay.Milliseconds(), "delayed-retry-max": delay.Milliseconds(),
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
	const (
		messages = 20
		delay    = 300 * time.Millisecond
		tries    = 3
	)
	queue := broker.Name(t, "native")
	broker.Clean(t, queue)
	existing(t, queue, amqp091.Table{"x-queue-type": "quorum"})
	existing(t, queue+".poison", amqp091.Table{"x-queue-type": "quorum"})
	err := setNativePolicy(t, queue, "all", delay)
	if !generationOf(t).nativeDelays {
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
	router := message.NewDefaultRouter(watermill.NopLogger{})
	var mu sync.Mutex
	failed := map[string][]time.Time{}
	router.AddConsumerHandler("billing", queue, subscriber, func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		failed[msg.UUID] = append(failed[msg.UUID], time.Now())
		return errDown
	}).AddMiddleware(giveUp(poison, tries))
	stop := testapp.Start(t, router)
	testapp.Send(t, "", queue, testapp.Orders(messages)...)

	letters := testapp.NewLedger()
	for _, d := range testapp.Take(t, queue+".poison", messages) {
		letters.Add(string(d.Body))
		assert.Equal(t, errDown.Error(), d.Headers[wmiddleware.ReasonForPoisonedKey])
	}
	stop()
	require.NoError(t, publisher.Close())
	assert.Equal(t, messages, letters.Len())
	assert.Len(t, failed, messages)
	for identity, times := range failed {
		require.Len(t, times, tries, identity)
		for i := 1; i < tries; i++ {
			assert.GreaterOrEqual(t, times[i].Sub(times[i-1]), broker.Least(delay), identity)
		}
	}
}
