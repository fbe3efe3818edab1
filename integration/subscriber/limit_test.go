package subscriber_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
)

// A tap limits the one subscription of a subscriber.
type tap struct{ *gate.Gate }

// newTap returns a tap with a limit at the start.
func newTap(first int) tap {
	p := tap{gate.New(0)}
	p.limit(first)
	return p
}

func (p tap) limit(n int) { p.Set(gate.Operator, n) }

// consumers is how many consumers the queue has.
func (q *queue) consumers(t testing.TB) int {
	t.Helper()
	state, err := q.channel.QueueDeclarePassive(q.name, true, false, false, false, nil)
	require.NoError(t, err)
	return state.Consumers
}

// waitPaused waits until the queue has no consumer, and this number of messages. A quorum queue counts a cancelled consumer until
// its last message is settled.
func (q *queue) waitPaused(t testing.TB, ready int) {
	t.Helper()
	broker.Eventually(t, soon, func() bool { return q.consumers(t) == 0 && q.ready(t) == ready }, "paused, with %d messages in the queue", ready)
}

func (q *queue) waitReady(t testing.TB, ready int) {
	t.Helper()
	broker.Eventually(t, soon, func() bool { return q.ready(t) == ready }, "%d messages in the queue", ready)
}

// TestTheOrderIsKeptAcrossPauses of a handler that fetches one message at a time.
func TestTheOrderIsKeptAcrossPauses(t *testing.T) {
	t.Parallel()
	uuids := names("message", 120)
	for kind, arguments := range map[string]amqp091.Table{"quorum": quorum, "classic": classic} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t, arguments)
			q.publish(t, uuids...)
			p := newTap(-1)
			connection, _, messages := q.subscribe(t, broker.URL(t), config{Concurrency: 1, Prefetch: 1, Gate: p.Gate})
			handled := newLedger()
			var running atomic.Int32
			handle(messages, func(msg *message.Message) {
				assert.EqualValues(t, 1, running.Add(1), "one message at a time")
				handled.add(msg.UUID)
				running.Add(-1)
				msg.Ack()
			})
			for round := 1; round <= 8; round++ {
				enough := min(len(uuids), handled.distinct()+10)
				broker.Eventually(t, soon, func() bool { return handled.distinct() >= enough }, "messages are handled")
				p.limit(0)
				if round%2 == 0 { // every other pause ends at once
					broker.Eventually(t, soon, func() bool {
						return q.consumers(t) == 0 && q.ready(t) == len(uuids)-handled.distinct()
					}, "paused, and all messages are back")
				}
				p.limit([]int{1, 2, -1}[round%3])
			}
			p.limit(-1)
			broker.Eventually(t, soon, func() bool { return handled.distinct() == len(uuids) }, "messages are handled")
			require.Empty(t, connection.Health().Subscriptions[0].LastError, "the channel is the first one")
			assert.Equal(t, uuids, handled.inOrder(), "none is handled twice")
		})
	}
}

func TestAPauseOutlastsTheConnection(t *testing.T) {
	t.Parallel()
	q := newQueue(t, quorum)
	q.publish(t, names("message", 40)...)
	proxy, uri := broker.Proxy(t)
	var declared atomic.Int32
	p := newTap(0)
	connection, _, messages := q.subscribe(t, uri, config{
		Gate: p.Gate,
		Declare: func(d *subscriber.Declaration, topic string) error {
			declared.Add(1)
			return q.declare(d, topic)
		},
	})
	handled := newLedger()
	var blocked sync.WaitGroup
	blocked.Add(1)
	release := sync.OnceFunc(blocked.Done)
	defer release()
	handle(messages, func(msg *message.Message) {
		handled.add(msg.UUID)
		blocked.Wait()
		msg.Ack()
	})
	reconnect := func(meanwhile func()) {
		t.Helper()
		before := declared.Load()
		proxy.Stop()
		broker.Eventually(t, soon, func() bool { return !connection.Health().Links[0].Connected }, "it notices")
		meanwhile()
		require.NoError(t, proxy.Start())
		broker.Eventually(t, soon, func() bool { return declared.Load() > before && connection.Health().Links[0].Connected }, "declared again")
	}
	reconnect(func() {})
	q.waitPaused(t, 40)
	assert.Zero(t, handled.distinct(), "paused before and after")

	reconnect(func() { p.limit(-1) })
	broker.Eventually(t, soon, func() bool { return handled.distinct() == 16 }, "resumed while there was no connection")

	reconnect(func() { p.limit(0) })
	q.waitPaused(t, 40)
	release()
	broker.Eventually(t, soon, func() bool { return connection.Health().Subscriptions[0].InFlight == 0 }, "the messages in flight end")
	assert.Equal(t, 16, handled.distinct(), "paused while there was no connection")
	p.limit(2)
	broker.Eventually(t, soon, func() bool { return handled.distinct() == 40 && q.ready(t) == 0 }, "resumed")
}

// The queue of a paused subscription has no consumer that the broker could cancel.
func TestTheQueueIsDeletedDuringAPause(t *testing.T) {
	t.Parallel()
	q := newQueue(t, quorum)
	p := newTap(-1)
	_, _, messages := q.subscribe(t, broker.URL(t), config{Gate: p.Gate})
	p.limit(0)
	q.waitPaused(t, 0)
	_, err := q.channel.QueueDelete(q.name, false, false, false)
	require.NoError(t, err)
	p.limit(-1)
	var passive *amqp091.Channel
	broker.Eventually(t, soon, func() bool {
		if passive == nil || passive.IsClosed() {
			passive = broker.Channel(t)
		}
		state, err := passive.QueueDeclarePassive(q.name, true, false, false, false, nil)
		return err == nil && state.Consumers == 1
	}, "declared and consumed again")
	q.publish(t, "after")
	msg := receive(t, messages)
	assert.Equal(t, "after", msg.UUID)
	msg.Ack()
}
