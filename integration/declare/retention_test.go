package declare_test

import (
	"fmt"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// kept is the MaxLength of these tests.
const kept = 10

func tenLetters(b *config.Config) { b.DeadLetters.MaxLength = kept }

// fail adds a handler that fails for good, one message after the other, and returns how many dead letters it has
// written.
func (a *app) fail(queue string) (written *atomic.Int64) {
	written = &atomic.Int64{}
	a.Observe(eventtest.OnEvent(func(e retry.Event) {
		if e.Outcome == retry.DeadLettered {
			written.Add(1)
		}
	}))
	a.AddConsumerHandler(a.Router, queue, queue, func(*message.Message) error { return backoff.Permanent(testapp.ErrDown) },
		retry.Options{
			Concurrency: 1,
		})
	return written
}

// take takes messages from a queue, and returns their identities.
func take(t *testing.T, queue string, n int) (identities []string) {
	t.Helper()
	for _, d := range testapp.Take(t, queue, n) {
		identities = append(identities, d.Headers["_watermill_message_uuid"].(string))
	}
	return identities
}

// newest are the identities of the newest dead letters of n messages.
func newest(n int) (identities []string) {
	for i := n - kept; i < n; i++ {
		identities = append(identities, testapp.ID(i))
	}
	return identities
}

// TestTheNewestDeadLettersAreKept: also in a queue that was deleted, which the publisher declares again.
func TestTheNewestDeadLettersAreKept(t *testing.T) {
	t.Parallel()
	for _, kind := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			a := connect(t, tenLetters, func(b *config.Config) { b.QueueType = kind })
			queue, other := a.Queue("orders"), a.Queue("mails")
			written := a.fail(queue)
			a.fail(other)
			a.Run()
			for round := int64(1); round <= 2; round++ {
				testapp.Send(t, "", queue, testapp.Orders(30)...)
				broker.Eventually(t, soon, func() bool { return written.Load() == 30*round }, "all dead letters are written")
				assert.Equal(t, kept, testapp.Depth(t, queue+".dead"))
				assert.Equal(t, newest(30), take(t, queue+".dead", kept))
				assert.EqualValues(t, kept, testapp.Arguments(t, queue+".dead")["x-max-length"])
				testapp.Delete(t, queue+".dead")
			}
			assert.Equal(t, 1, a.Log.Warnings("the broker drops the oldest dead letters"), "whatever the number of queues")
			assert.NotContains(t, testapp.Arguments(t, a.Name+".orphans"), "x-max-length")
			assert.NotContains(t, testapp.Arguments(t, queue), "x-max-length", "the work queue")
			assert.Zero(t, testapp.Depth(t, a.Name+".orphans"))
		})
	}
}

// TestDeadLettersAreDroppedAfterTheirAge, and not before.
func TestDeadLettersAreDroppedAfterTheirAge(t *testing.T) {
	t.Parallel()
	const age = 3 * time.Second
	a := connect(t, func(b *config.Config) { b.DeadLetters.MaxAge = age })
	queue := a.Queue("orders")
	written := a.fail(queue)
	a.Run()
	begin := time.Now()
	testapp.Send(t, "", queue, testapp.Orders(1)...)
	broker.Eventually(t, soon, func() bool { return written.Load() == 1 }, "the dead letter is written")
	broker.Eventually(t, soon, func() bool { return testapp.Depth(t, queue+".dead") == 0 }, "it is dropped")
	assert.GreaterOrEqual(t, time.Since(begin), broker.Least(age))
	assert.Zero(t, testapp.Depth(t, a.Name+".orphans"))
	assert.EqualValues(t, 1, written.Load(), "it does not come back")
}

// TestTheBrokerItselfWritesDeadLettersAtTheLimit: at-least-once dead-lettering loses nothing but the oldest, and leaves
// nothing behind.
func TestTheBrokerItselfWritesDeadLettersAtTheLimit(t *testing.T) {
	t.Parallel()
	name := broker.Name(t, "t")
	broker.Clean(t, name)
	orders := topology.New(topology.Config{
		Tiers: backoff.Constant(time.Second, 1).Tiers(), Prefix: name, DeadLetters: topology.Retention{MaxLength: kept},
	}, topology.Queue{Name: "orders_" + name, Durable: true})
	channel := broker.Channel(t)
	require.NoError(t, orders.Declare(channel))
	require.Equal(t, "at-least-once", orders.WorkQueue.Arguments["x-dead-letter-strategy"])
	const messages = 30
	testapp.Send(t, "", orders.WorkQueue.Name, testapp.Orders(messages)...)
	client := broker.Management(t)
	counted := func(n int) func() bool {
		return func() bool {
			info, err := broker.Queue(client, orders.WorkQueue.Name)
			return err == nil && info.Messages == n
		}
	}
	broker.Eventually(t, soon, counted(messages), "the management API has counted the messages")
	deliveries, err := channel.Consume(orders.WorkQueue.Name, "", false, false, false, false, nil)
	require.NoError(t, err)
	for range messages {
		d := broker.Receive(t, deliveries, "a message")
		require.NoError(t, d.Reject(false))
	}
	broker.Eventually(t, soon, counted(0), "the broker has forwarded them")
	assert.Equal(t, kept, testapp.Depth(t, orders.DeadLetterQueue()))
	assert.Equal(t, newest(messages), take(t, orders.DeadLetterQueue(), kept))
}

// TestTheLimitsOfAnExistingQueue cannot be changed: the error has the command of the policy that does it.
func TestTheLimitsOfAnExistingQueue(t *testing.T) {
	t.Parallel()
	a := connect(t)
	queue := a.Queue("or.ders")
	written := a.fail(queue)
	a.Run()
	testapp.Send(t, "", queue, testapp.Orders(30)...)
	broker.Eventually(t, soon, func() bool { return written.Load() == 30 }, "all dead letters are written")
	require.Equal(t, 30, testapp.Depth(t, queue+".dead"), "the default keeps all")

	limited := connect(t, func(b *config.Config) {
		b.Prefix, b.DeadLetters = a.Name, topology.Retention{MaxLength: kept, MaxAge: time.Hour}
	})
	subscriber, err := limited.Subscriber("limited")
	require.NoError(t, err)
	_, err = subscriber.Subscribe(t.Context(), queue)
	conflict := &topology.ArgumentConflictError{}
	require.ErrorAs(t, err, &conflict)
	assert.Equal(t, queue+".dead", conflict.Object)
	assert.Equal(t, "none", conflict.Have)
	command := regexp.MustCompile(`: rabbitmqctl set_policy -p '/' --apply-to queues '([^']+)' '([^']+)' '([^']+)': Exception`).FindStringSubmatch(err.Error())
	require.NotNil(t, command, err.Error())
	assert.Equal(t, fmt.Sprintf(`{"max-length":%d,"message-ttl":3600000}`, kept), command[3])
	testapp.PutPolicy(t, command[1], command[2], command[3])
	broker.Eventually(t, soon, func() bool { return testapp.Depth(t, queue+".dead") == kept },
		"the broker drops the oldest")
	assert.Equal(t, newest(30), take(t, queue+".dead", kept))
}
