package declare_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

const batch = 50

// send publishes a batch of messages, whose identities begin at first.
func send(t testing.TB, queue string, first int) {
	t.Helper()
	testapp.Send(t, "", queue, testapp.Orders(first + batch)[first:]...)
}

// replace deletes a queue, and declares it with other arguments before its consumers, which the broker has cancelled,
// declare it again. RabbitMQ before 4.0 does not cancel all consumers of a classic queue where the queue exists again
// too soon.
func (a *app) replace(queue string, arguments amqp091.Table) {
	a.t.Helper()
	connection := broker.Connect(a.t)
	consuming := func() (all, none bool, last time.Time) {
		all, none = true, true
		for _, s := range a.Health().Subscriptions {
			all, none = all && s.Consuming, none && !s.Consuming
			if s.Consuming && s.Since.After(last) {
				last = s.Since
			}
		}
		return all, none, last
	}
	broker.Eventually(a.t, 2*soon, func() bool {
		broker.Eventually(a.t, soon, func() bool { all, _, _ := consuming(); return all }, "all consume")
		channel, err := connection.Channel()
		require.NoError(a.t, err)
		defer channel.Close()
		deleted := time.Now()
		_, err = channel.QueueDelete(queue, false, false, false)
		require.NoError(a.t, err)
		broker.Eventually(a.t, soon, func() bool {
			_, none, last := consuming()
			return none || last.After(deleted) // on a slow machine, one of them is faster
		}, "no subscription consumes, or one has declared the queue")
		_, err = channel.QueueDeclare(queue, true, false, false, false, arguments)
		return err == nil
	}, "the queue has other arguments")
}

// slowly makes the subscriptions wait for at least a second before they declare again.
func slowly(b *config.Config) {
	b.AMQP.Connection.Reconnect = amqp.DefaultReconnectConfig()
	b.AMQP.Connection.Reconnect.BackoffInitialInterval = 2 * time.Second
	b.AMQP.Connection.Reconnect.BackoffMaxInterval = 3 * time.Second // the pauses do not grow up to the deadline of the test
}

// onceEach checks that each message was processed once, and that nothing was dead-lettered or lost its way.
func (a *app) onceEach(queue string, processed *testapp.Ledger, messages int) {
	a.t.Helper()
	processed.Wait(a.t, messages, soon)
	assert.Equal(a.t, messages, processed.Len())
	assert.Empty(a.t, processed.Twice())
	assert.Zero(a.t, testapp.Depth(a.t, queue+".dead"))
	assert.Zero(a.t, testapp.Depth(a.t, a.Name+".orphans"))
}

func TestTheWorkQueueIsReplacedWhileItIsConsumed(t *testing.T) {
	t.Parallel()
	a := connect(t, slowly)
	queue := a.Queue("orders")
	processed := testapp.NewLedger()
	a.handle(queue, 3, processed)
	a.Run()
	send(t, queue, 0)
	a.onceEach(queue, processed, batch)
	for i, arguments := range []amqp091.Table{
		{"x-queue-type": "classic"}, nil, {"x-queue-type": "quorum", "x-delivery-limit": int32(50),
			"x-dead-letter-exchange": "amq.fanout"},
	} {
		a.replace(queue, arguments)
		send(t, queue, (i+1)*batch)
		a.onceEach(queue, processed, (i+2)*batch)
	}
	assert.Equal(t, 1, a.Log.Warnings("no dead-letter exchange"))
	// A handler that comes late declares while the queue is deleted again: RabbitMQ 4.3 can answer 541 to that.
	const lost = "Connection lost, reconnecting"
	assert.Equal(t, a.Log.Count(lost+" Exception (541)"), a.Log.Count(lost))
	broker.Eventually(t, soon, func() bool { return a.Health().Ready() == nil }, "all consume")
}

// returns are the bindings through which messages come back to a work queue: keys by exchange.
func (a *app) returns(queue string) (bindings map[string][]string) {
	return map[string][]string{a.Name + ".return": {"100ms." + queue, "300ms." + queue, "1s." + queue},
		a.Name + ".return.any": {"*." + queue}}
}

// unbind removes the bindings of a work queue to exchanges.
func (a *app) unbind(queue string, exchanges ...string) {
	a.t.Helper()
	channel := broker.Channel(a.t)
	for _, exchange := range exchanges {
		for _, key := range a.returns(queue)[exchange] {
			require.NoError(a.t, channel.QueueUnbind(queue, key, exchange, nil))
		}
	}
}

// bound is how many bindings an exchange has.
func (a *app) bound(exchange string) (count int) {
	a.t.Helper()
	client := broker.Management(a.t)
	broker.Eventually(a.t, soon, func() bool {
		bindings, err := client.ListExchangeBindingsWithSource("/", exchange)
		count = len(bindings)
		return err == nil
	}, "the management API answers")
	return count
}

// TestOneReturnBindingIsRemoved: messages come back through the other exchange, at once. None becomes an orphan.
func TestOneReturnBindingIsRemoved(t *testing.T) {
	t.Parallel()
	for _, exchange := range []string{".return", ".return.any"} {
		t.Run(exchange, func(t *testing.T) {
			t.Parallel()
			a := connect(t)
			queue := a.Queue("orders")
			processed := testapp.NewLedger()
			a.handle(queue, 3, processed)
			a.Run()
			for removed := range 2 {
				a.unbind(queue, a.Name+exchange)
				send(t, queue, removed*batch)
				a.onceEach(queue, processed, (removed+1)*batch)
			}
		})
	}
}

// TestARetiredTierOfAGroup: what waits on it comes back once, to its own work queue, with an inbox and without.
func TestARetiredTierOfAGroup(t *testing.T) {
	t.Parallel()
	for name, existing := range map[string]amqp091.Table{
		"without an inbox": {"x-queue-type": "quorum", "x-delivery-limit": int64(1000),
			"x-dead-letter-exchange": "amq.fanout"},
		"with an inbox": nil, // a classic queue
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := connect(t, func(b *config.Config) {
				b.Policy.TierGroup, b.Policy.ExtraTiers = b.Prefix+"_group", b.Policy.Schedule
			})
			group := a.Name + "_group"
			queues := []string{a.Queue("orders"), a.Queue("mails")}
			for _, queue := range queues {
				old := topology.New(
					topology.Config{Tiers: backoff.Constant(time.Second, 1).Tiers(), Prefix: a.Name, TierGroup: group,
						WorkQueueMode: topology.Leave},
					topology.Queue{Name: queue, Durable: true, Arguments: existing},
				)
				broker.Declare(t, old.Declare)
				hasInbox := slices.ContainsFunc(old.Queues,
					func(q topology.Queue) bool { return strings.HasSuffix(q.Name, ".inbox") })
				require.Equal(t, existing == nil, hasInbox)
				_, err := broker.Channel(t).QueueDelete(queue, false, false, false) // the bindings of the old app go with it
				require.NoError(t, err)
				_, err = broker.Channel(t).QueueDeclare(queue, true, false, false, false, existing)
				require.NoError(t, err)
			}
			processed := map[string]*testapp.Ledger{}
			for _, queue := range queues {
				processed[queue] = testapp.NewLedger()
				a.handle(queue, 1, processed[queue])
			}
			a.Run()
			for i, queue := range queues {
				testapp.Send(t, group+"."+a.Name, "1s."+queue, testapp.Orders((i + 1) * batch)[i*batch:]...)
			}
			for i, queue := range queues {
				a.onceEach(queue, processed[queue], batch)
				assert.Contains(t, processed[queue].Counts(), testapp.ID(i*batch), "its own messages")
			}
			tier := group + "." + a.Name + ".1s"
			broker.Eventually(t, soon, func() bool {
				info, err := broker.Queue(broker.Management(t), tier)
				return err == nil && info.Messages == 0
			}, "the tier has forwarded all messages")
		})
	}
}

// TestAReturnExchangeIsDeleted: all queues that the app consumes are bound again with it.
func TestAReturnExchangeIsDeleted(t *testing.T) {
	t.Parallel()
	for name, deleted := range map[string][]string{
		".return": {".return"}, ".return.any": {".return.any"}, "both": {".return", ".return.any"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testDeletedReturnExchange(t, deleted)
		})
	}
}

func testDeletedReturnExchange(t *testing.T, deleted []string) {
	a := connect(t)
	queues := []string{a.Queue("orders"), a.Queue("mails"), a.Queue("parcels")}
	processed := map[string]*testapp.Ledger{}
	for _, queue := range queues {
		processed[queue] = testapp.NewLedger()
		a.handle(queue, 1, processed[queue])
	}
	a.Run()
	allBound := func() bool {
		t.Helper()
		return a.bound(a.Name+".return") == 3*len(queues) && a.bound(a.Name+".return.any") == len(queues)
	}
	require.True(t, allBound())
	channel := broker.Channel(t)
	for _, exchange := range deleted {
		require.NoError(t, channel.ExchangeDelete(a.Name+exchange, false, false))
	}
	if len(deleted) == 1 {
		broker.Eventually(t, soon, func() bool { return a.Log.Warnings("was gone") == 1 }, "it is declared again")
		require.True(t, allBound(), "at once")
	} else { // the first may be declared again before the second is deleted
		broker.Eventually(t, soon, func() bool { return a.Log.Warnings("was gone") > 0 && allBound() },
			"both are declared again")
	}
	for _, queue := range queues {
		send(t, queue, 0)
	}
	for _, queue := range queues {
		a.onceEach(queue, processed[queue], batch)
	}
}

// inGroup makes the work queues of an app share their tiers.
func inGroup(b *config.Config) {
	b.Policy.TierGroup, b.Policy.ExtraTiers = b.Prefix+"_group", b.Policy.Schedule
}

func (a *app) inbox(queue string) string { return queue + "." + a.Name + ".inbox" }
func (a *app) groupExchange() string     { return a.Name + "_group." + a.Name }
func (a *app) groupReturn() string       { return a.groupExchange() + ".return" }

// boundTo are the queues that are bound to an exchange.
func (a *app) boundTo(exchange string) (queues []string) {
	a.t.Helper()
	client := broker.Management(a.t)
	broker.Eventually(a.t, soon, func() bool {
		bindings, err := client.ListExchangeBindingsWithSource("/", exchange)
		queues = nil
		for _, b := range bindings {
			queues = append(queues, b.Destination)
		}
		return err == nil
	}, "the management API answers")
	slices.Sort(queues)
	return queues
}

// A work queue that is replaced by one of another type gets an inbox when it needs one, and keeps it. No message comes
// twice.
func TestAWorkQueueOfAGroupChangesItsType(t *testing.T) {
	t.Parallel()
	a := connect(t, slowly, inGroup)
	queue := a.Queue("orders")
	processed := testapp.NewLedger()
	a.handle(queue, 3, processed)
	a.Run()
	for i, kind := range []string{"quorum", "classic", "quorum"} {
		bound := []string{queue}
		if i > 0 {
			a.replace(queue, amqp091.Table{"x-queue-type": kind, "x-dead-letter-exchange": "amq.fanout"})
			bound = append(bound, a.inbox(queue))
		}
		broker.Eventually(t, soon, func() bool {
			return a.Health().Ready() == nil && slices.Equal(a.boundTo(a.groupReturn()), bound)
		}, "%v are bound", bound)
		send(t, queue, i*batch)
		a.onceEach(queue, processed, (i+1)*batch)
	}
}
