package order_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/retry"
)

// slowly is a handler that takes a moment, so that messages are in flight when something happens.
func (s *sink) slowly(msg *message.Message) error {
	time.Sleep(2 * time.Millisecond)
	return s.handle(msg)
}

func TestADeploymentKeepsTheOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.start(retry.Options{}, w.sink.slowly)
	all := messages(20, 60, sometimes(0.1))
	w.publish(before, all)
	for range 3 {
		after := w.start(retry.Options{}, w.sink.slowly)
		count := w.sink.count()
		testapp.Eventually(t, func() bool { return w.sink.count() >= min(count+100, len(all)) }, "it is handled")
		before.stop()
		before = after
	}
	testapp.Eventually(t, func() bool { return w.sink.count() == len(all) }, "all are handled")
	w.settled(4)
	w.sink.inOrder(t)
	assert.Zero(t, w.sink.rewinds, "a stop waits for what runs, and sends its acks")
}

func TestALostConnectionKeepsTheOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy, uri := broker.Proxy(t)
	other := w.start(retry.Options{}, w.sink.slowly)
	w.config.AMQP.Connection.AmqpURI = uri
	w.start(retry.Options{}, w.sink.slowly)
	all := messages(20, 60, sometimes(0.1))
	w.publish(other, all)
	for range 4 {
		count := w.sink.count()
		testapp.Eventually(t, func() bool { return w.sink.count() >= min(count+150, len(all)) }, "they are handled")
		proxy.Stop()
		require.NoError(t, proxy.Start())
	}
	testapp.Eventually(t, func() bool { return w.sink.count() == len(all) }, "all are handled")
	w.settled(4)
	w.sink.inOrder(t)
}

func TestAPauseGivesThePartitionsToAnotherProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var first, second atomic.Int64
	a := w.start(retry.Options{}, func(msg *message.Message) error { first.Add(1); return w.sink.slowly(msg) })
	w.start(retry.Options{}, func(msg *message.Message) error { second.Add(1); return w.sink.slowly(msg) })
	all := messages(20, 60, sometimes(0.1))
	half := len(all) / 2
	w.publish(a, all[:half])
	testapp.Eventually(t, func() bool { return w.sink.count() > 100 }, "it is handled")
	require.NoError(t, a.Pause("billing"))
	testapp.Eventually(t, func() bool { return a.Health().Subscriptions[0].InFlight == 0 }, "what runs has ended")
	w.publish(a, all[half:])
	testapp.Eventually(t, func() bool { return second.Load() >= int64(half) }, "the other one has them")
	before := first.Load()
	testapp.Eventually(t, func() bool { return w.sink.count() == len(all) }, "all are handled")
	assert.Equal(t, before, first.Load())
	require.NoError(t, a.Health().Ready())
	require.NoError(t, a.Resume("billing"))
	testapp.Eventually(t, func() bool { return a.Health().Subscriptions[0].Consuming }, "it consumes again")
	w.settled(4)
	w.sink.inOrder(t)
	assert.Zero(t, w.sink.rewinds)
}

func TestAMessageThatWaitsIsGivenBackInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.Policy.Schedule = backoff.Schedule{3 * time.Second}
	a := w.start(retry.Options{Order: retry.Order{ConsumerTimeout: 2 * time.Second}}, w.sink.handle)
	all := messages(8, 10, func(k, n int) int {
		if n == 3 {
			return 1
		}
		return 0
	})
	w.publish(a, all)
	testapp.Eventually(t, func() bool { return w.sink.count() == len(all) }, "all are handled")
	w.sink.inOrder(t)
	assert.Zero(t, w.sink.rewinds)
	assert.Len(t, a.Events(retry.Retried), 8, "the failures were not forgotten")
	for _, e := range a.Events(retry.Recovered) {
		assert.GreaterOrEqual(t, e.Lateness, time.Duration(0), "not early")
		assert.Equal(t, 1, e.Record.Failures)
	}
	assert.Positive(t, a.Log.Count("half of the consumer timeout"))
	w.settled(4)
}

func TestANackGivesThePartitionBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var nacked atomic.Int64
	a := w.start(retry.Options{Order: retry.Order{Partitions: 1}}, func(msg *message.Message) error {
		if nacked.Add(1) == 25 {
			msg.Nack()
			return errDown
		}
		return w.sink.handle(msg)
	})
	all := messages(5, 20, never)
	w.publish(a, all)
	testapp.Eventually(t, func() bool { return w.sink.count() == len(all) }, "all are handled")
	w.sink.inOrder(t)
	w.settled(1)
}

func TestADeadLetterIsSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var repaired atomic.Bool
	a := w.start(retry.Options{}, func(msg *message.Message) error {
		if msg.Metadata.Get("stolen") != "" && !repaired.Load() {
			return backoff.Permanent(errDown)
		}
		return w.sink.handle(msg)
	})
	all := messages(4, 10, never)
	for _, msg := range all[12:16] {
		msg.Metadata.Set("stolen", "yes")
	}
	for k := range 4 {
		w.sink.skip(fmt.Sprintf("customer-%d", k), 3)
	}
	w.publish(a, all)
	testapp.Eventually(t, func() bool { return w.sink.count() == len(all)-4 }, "all others are handled")
	w.sink.inOrder(t)
	assert.Equal(t, 4, testapp.Depth(t, w.queue+".dead"))

	repaired.Store(true)
	letters := testapp.Take(t, w.queue+".dead", 4)
	for _, letter := range letters {
		testapp.Send(t, "", w.queue, again(letter))
	}
	testapp.Eventually(t, func() bool { return w.sink.count() == len(all) }, "they are handled again")
	w.settled(4)
}

func TestTwoMessagesWithOneUUID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.Policy.Schedule = backoff.Schedule{1500 * time.Millisecond}
	done := testapp.NewLedger()
	a := w.start(retry.Options{Order: retry.Order{Partitions: 1, ConsumerTimeout: 2 * time.Second}},
		func(msg *message.Message) error {
			if testapp.Failures(msg) == 0 {
				return errDown
			}
			done.Add(fmt.Sprint(done.Len()))
			return nil
		})
	twin := messages(1, 1, never)[0]
	w.publish(a, []*message.Message{twin, twin.Copy()})
	testapp.Eventually(t, func() bool { return done.Len() == 2 }, "both are handled, and the partition is given back "+
		"meanwhile")
	w.settled(1)
}

func TestThePartitionsAreShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.start(retry.Options{}, w.sink.slowly)
	w.start(retry.Options{}, w.sink.slowly)
	connection := broker.Connect(t)
	owned := func() (counts []int) { // of each process
		channel, err := connection.Channel()
		require.NoError(t, err)
		defer channel.Close()
		answers, err := command.Ask(t.Context(), channel, naming.Prefix(w.config.Prefix).OrderControl(),
			command.Request{Queue: w.queue, Do: command.Status}, 2, soon)
		require.NoError(t, err)
		for _, a := range answers {
			count := 0
			for _, p := range a.Handlers[0].Partitions[1:] {
				if p.Delivered > 0 {
					count++
				}
			}
			counts = append(counts, count)
		}
		return counts
	}
	testapp.Eventually(t, func() bool {
		for k := range 20 {
			msg := messages(1, 1, never)[0]
			msg.Metadata.Set("customer", fmt.Sprint("shared-", k))
			w.publish(first, []*message.Message{msg})
		}
		return slices.Equal(owned(), []int{2, 2})
	}, "each has two")
}

func TestMessagesOfTheWorkQueueAreMoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(retry.Options{}, w.sink.slowly)
	all := messages(10, 30, sometimes(0.1))
	for _, msg := range all {
		testapp.Send(t, "", w.queue, published(msg))
	}
	testapp.Eventually(t, func() bool { return w.sink.count() == len(all) }, "all are handled")
	w.sink.inOrder(t)
	w.settled(4)
}

// TestProducedMessagesThatAreNotPublished count failures, as in every handler.
func TestProducedMessagesThatAreNotPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := &app{App: testapp.Connect(t, w.config)}
	a.AddHandler(a.Router, "billing", w.queue, "nowhere_"+w.config.Prefix,
		func(msg *message.Message) ([]*message.Message, error) { return messages(1, 1, never), nil },
		retry.Options{Order: retry.Order{Key: keyOf, Partitions: 1}})
	t.Cleanup(testapp.Start(t, a.Router))
	w.publish(a, messages(1, 1, never))
	testapp.Eventually(t, func() bool { return len(a.Events(retry.DeadLettered)) == 1 }, "its retries are used up")
	assert.Len(t, a.Events(retry.Retried), len(w.config.Policy.Schedule))
	w.settled(1)
}

// TestCopiesWithOneUUID in several partitions do not get the record of another one.
func TestCopiesWithOneUUID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.Policy.Schedule = backoff.Schedule{1500 * time.Millisecond}
	done := testapp.NewLedger()
	a := w.start(retry.Options{Order: retry.Order{ConsumerTimeout: 2 * time.Second}}, func(msg *message.Message) error {
		record, failed := retry.ReadRecord(msg.Metadata)
		if !failed {
			return fmt.Errorf("failure of %s", msg.Payload)
		}
		done.Add(keyOf(msg) + " " + record.Reason)
		return nil
	})
	first := messages(1, 1, never)[0]
	var all []*message.Message
	for n := range 12 {
		copied := first.Copy()
		copied.Payload = fmt.Append(nil, n)
		copied.Metadata.Set("customer", fmt.Sprint("customer-", n))
		all = append(all, copied)
	}
	w.publish(a, all)
	testapp.Eventually(t, func() bool { return done.Len() == len(all) }, "each is handled")
	for n := range 12 {
		assert.Equal(t, 1, done.Counts()[fmt.Sprintf("customer-%d failure of %d", n, n)])
	}
	w.settled(4)
}
