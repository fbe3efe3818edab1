package declare_test

import (
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

const batch = 50

// send publishes a batch of messages, whose identities begin at first.
func send(t testing.TB, queue string, first int) {
	t.Helper()
	testapp.Send(t, "", queue, testapp.Orders(first + batch)[first:]...)
}

// replace deletes a queue, and declares it with other arguments before its consumers, which the broker has cancelled, declare it
// again. RabbitMQ before 4.0 does not cancel all of them where the queue exists again too soon.
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
func slowly(b *config.BuilderConfig) {
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
	assert.Zero(a.t, testapp.Depth(a.t, a.name+".orphans"))
}

func TestTheWorkQueueIsReplacedWhileItIsConsumed(t *testing.T) {
	t.Parallel()
	a := connect(t, slowly)
	queue := a.queue("orders")
	processed := testapp.NewLedger()
	a.handle(queue, 3, processed)
	a.run()
	send(t, queue, 0)
	a.onceEach(queue, processed, batch)
	for i, arguments := range []amqp091.Table{
		{"x-queue-type": "classic"}, nil, {"x-queue-type": "quorum", "x-delivery-limit": int32(50), "x-dead-letter-exchange": "amq.fanout"},
	} {
		a.replace(queue, arguments)
		send(t, queue, (i+1)*batch)
		a.onceEach(queue, processed, (i+2)*batch)
	}
	assert.Equal(t, 1, a.log.Warnings("no dead-letter exchange"))
	assert.Equal(t, 2, a.wire.dialled())
	broker.Eventually(t, soon, func() bool { return a.Health().Ready() == nil }, "all consume")
}

// TestTheReplacedWorkQueueCannotBeUsed: it is not consumed, and the reason is in the log and in Health.
func TestTheReplacedWorkQueueCannotBeUsed(t *testing.T) {
	t.Parallel()
	a := connect(t, slowly)
	queue := a.queue("orders")
	processed := testapp.NewLedger()
	a.handle(queue, 1, processed)
	a.run()
	a.replace(queue, amqp091.Table{"x-queue-type": "classic", "x-max-length": int32(1000)})
	broker.Eventually(t, soon, func() bool {
		s := a.Health().Subscriptions[0]
		return !s.Consuming && s.LastError != nil && strings.Contains(s.LastError.Error(), "x-max-length=1000")
	}, "it is refused")
	broker.Eventually(t, soon, func() bool { return a.log.Count("x-max-length=1000") > 0 }, "the reason is in the log")

	_, err := broker.Channel(t).QueueDelete(queue, false, false, false)
	require.NoError(t, err)
	broker.Eventually(t, soon, func() bool { return a.Health().Ready() == nil }, "it is declared")
	send(t, queue, 0)
	a.onceEach(queue, processed, batch)
}

// TestTheReturnBindingIsRemoved: until the next check, messages whose delay is over become orphans. No message is lost.
func TestTheReturnBindingIsRemoved(t *testing.T) {
	t.Parallel()
	a := connect(t)
	queue := a.queue("orders")
	processed := testapp.NewLedger()
	a.handle(queue, 3, processed)
	a.run()
	send(t, queue, 0)
	a.onceEach(queue, processed, batch)

	bind := "queue.bind " + queue + " to " + a.name + ".return"
	unbind := func() (checks int) {
		t.Helper()
		channel := broker.Channel(t)
		require.NoError(t, channel.QueueUnbind(queue, "*."+queue, a.name+".return", nil))
		return a.wire.consuming().count(bind)
	}
	checked := func(since int) {
		t.Helper()
		broker.Eventually(t, soon, func() bool { return a.wire.consuming().count(bind) > since+1 }, "the check")
	}
	checks := unbind()
	send(t, queue, batch)
	broker.Eventually(t, soon, func() bool {
		return processed.Len()+testapp.Depth(t, a.name+".orphans") == 2*batch
	}, "each is processed or an orphan")
	for _, orphan := range testapp.Take(t, a.name+".orphans", testapp.Depth(t, a.name+".orphans")) {
		processed.Add(orphan.Headers["_watermill_message_uuid"].(string))
	}
	assert.Equal(t, 2*batch, processed.Len(), "by identity")
	assert.Empty(t, processed.Twice())
	checked(checks)
	send(t, queue, 2*batch)
	a.onceEach(queue, processed, 3*batch)

	checked(unbind())
	send(t, queue, 3*batch)
	a.onceEach(queue, processed, 4*batch)
}

// TestTheReturnExchangeIsDeleted: all queues that the app consumes come back with it.
func TestTheReturnExchangeIsDeleted(t *testing.T) {
	t.Parallel()
	a := connect(t)
	queues := []string{a.queue("orders"), a.queue("mails"), a.queue("parcels")}
	processed := map[string]*testapp.Ledger{}
	for _, queue := range queues {
		processed[queue] = testapp.NewLedger()
		a.handle(queue, 1, processed[queue])
	}
	a.run()
	client := broker.Management(t)
	exchange := a.name + ".return"
	bound := func() (count int) {
		t.Helper()
		broker.Eventually(t, soon, func() bool {
			bindings, err := client.ListExchangeBindingsWithSource("/", exchange)
			count = len(bindings)
			return err == nil
		}, "the management API answers")
		return count
	}
	require.Equal(t, len(queues), bound())
	require.NoError(t, broker.Channel(t).ExchangeDelete(exchange, false, false))
	broker.Eventually(t, soon, func() bool { return a.log.Warnings("was gone") == 1 }, "it is declared again")
	require.Equal(t, len(queues), bound(), "at once")
	for _, queue := range queues {
		send(t, queue, 0)
	}
	for _, queue := range queues {
		a.onceEach(queue, processed[queue], batch)
	}
}

// TestAQueueThatIsNotConsumedIsNotBound: an operator can remove it while the app goes on.
func TestAQueueThatIsNotConsumedIsNotBound(t *testing.T) {
	t.Parallel()
	a := connect(t)
	removed, kept := a.queue("removed"), a.queue("kept")
	s, err := a.Subscriber("removed")
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), removed)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	other, err := a.Subscriber("kept")
	require.NoError(t, err)
	_, err = other.Subscribe(t.Context(), kept)
	require.NoError(t, err)
	bind := func(queue string) int {
		return a.wire.consuming().count("queue.bind " + queue + " to " + a.name + ".return")
	}
	checked := func(times int) {
		t.Helper()
		begin := bind(kept)
		broker.Eventually(t, soon, func() bool { return bind(kept) >= begin+times }, "the other queue is checked")
	}
	checked(1) // a check of the first queue that ran during its Close is over: checks do not overlap
	_, err = broker.Channel(t).QueueDelete(removed, false, false, false)
	require.NoError(t, err)
	bound := bind(removed)
	assert.Positive(t, bound, "when it was declared")
	checked(3)
	assert.Equal(t, bound, bind(removed), "it is not bound again")
}
