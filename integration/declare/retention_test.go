// Package declare_test changes the topology of an app while it consumes, and has the limits of dead letters.
package declare_test

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// kept is the MaxLength of these tests, of so many messages.
const kept, messages = 10, 30

// declare declares a work queue with such dead letters.
func declare(t *testing.T, kind topology.QueueType, letters topology.Retention) (name string, orders topology.Topology) {
	t.Helper()
	name = broker.Name(t, "t")
	broker.Clean(t, name)
	orders = topology.New(topology.Config{Tiers: backoff.Constant(time.Second, 1).Tiers(), Prefix: name, QueueType: kind,
		DeadLetters: letters}, topology.Queue{Name: "or.ders_" + name, Durable: true})
	broker.Declare(t, orders.Declare)
	return name, orders
}

// newest asserts that a queue has the newest messages, and takes them.
func newest(t *testing.T, queue string) {
	t.Helper()
	var identities []string
	for _, d := range testapp.Take(t, queue, kept) {
		identities = append(identities, d.Headers["_watermill_message_uuid"].(string))
	}
	assert.Equal(t, testapp.IDs(messages)[messages-kept:], identities)
	assert.Zero(t, testapp.Depth(t, queue))
}

// TestTheNewestDeadLettersAreKept: of those that an app publishes, and of those that the broker itself forwards. Its
// at-least-once dead-lettering loses nothing but the oldest, and leaves nothing behind.
func TestTheNewestDeadLettersAreKept(t *testing.T) {
	t.Parallel()
	for _, kind := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			name, orders := declare(t, kind, topology.Retention{MaxLength: kept})
			testapp.Send(t, name, "dead."+orders.WorkQueue.Name, testapp.Orders(messages)...)
			newest(t, orders.DeadLetterQueue())

			testapp.Send(t, "", orders.WorkQueue.Name, testapp.Orders(messages)...)
			client := broker.Management(t)
			counted := func(n int) func() bool {
				return func() bool {
					info, err := broker.Queue(client, orders.WorkQueue.Name)
					return err == nil && info.Messages == n
				}
			}
			testapp.Eventually(t, counted(messages), "the management API has counted the messages")
			deliveries, err := broker.Channel(t).Consume(orders.WorkQueue.Name, "", false, false, false, false, nil)
			require.NoError(t, err)
			for range messages {
				d := broker.Receive(t, deliveries, "a message")
				require.NoError(t, d.Reject(false))
			}
			testapp.Eventually(t, counted(0), "the broker has forwarded them")
			newest(t, orders.DeadLetterQueue())
			assert.Zero(t, testapp.Depth(t, name+".orphans"))
		})
	}
}

// TestDeadLettersAreDroppedAfterTheirAge, and not before.
func TestDeadLettersAreDroppedAfterTheirAge(t *testing.T) {
	t.Parallel()
	const age = 3 * time.Second
	name, orders := declare(t, topology.Quorum, topology.Retention{MaxAge: age})
	begin := time.Now()
	testapp.Send(t, name, "dead."+orders.WorkQueue.Name, testapp.Orders(1)...)
	testapp.Eventually(t, func() bool { return testapp.Depth(t, orders.DeadLetterQueue()) == 0 }, "it is dropped")
	assert.GreaterOrEqual(t, time.Since(begin), broker.Least(age))
	assert.Zero(t, testapp.Depth(t, name+".orphans"))
	assert.Zero(t, testapp.Depth(t, orders.WorkQueue.Name), "it does not come back")
}

// TestTheLimitsOfAnExistingQueue cannot be changed: the error has the command of the policy that does it.
func TestTheLimitsOfAnExistingQueue(t *testing.T) {
	t.Parallel()
	name, orders := declare(t, topology.Quorum, topology.Retention{})
	dead := orders.DeadLetterQueue()
	testapp.Send(t, name, "dead."+orders.WorkQueue.Name, testapp.Orders(messages)...)
	require.Equal(t, messages, testapp.Depth(t, dead), "the default keeps all")

	subscriber, err := testapp.New(t, testapp.Schedule(time.Second), func(b *config.Config) {
		b.Prefix, b.DeadLetters = name, topology.Retention{MaxLength: kept, MaxAge: time.Hour}
	}).Subscriber("limited")
	require.NoError(t, err)
	_, err = subscriber.Subscribe(t.Context(), orders.WorkQueue.Name)
	conflict := &topology.ArgumentConflictError{}
	require.ErrorAs(t, err, &conflict)
	assert.Equal(t, dead, conflict.Object)
	assert.Equal(t, "none", conflict.Have)
	command := regexp.MustCompile(`: rabbitmqctl set_policy -p '/' --apply-to queues '([^']+)' '([^']+)' '([^']+)': Exception`).FindStringSubmatch(err.Error())
	require.NotNil(t, command, err.Error())
	assert.Equal(t, fmt.Sprintf(`{"max-length":%d,"message-ttl":3600000}`, kept), command[3])
	testapp.PutPolicy(t, command[1], command[2], command[3])
	testapp.Eventually(t, func() bool { return testapp.Depth(t, dead) == kept }, "the broker drops the oldest")
	newest(t, dead)
}
