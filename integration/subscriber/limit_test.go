package subscriber_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

// TestTheOrderIsKeptAcrossPauses while messages are in flight and others are fetched. The last messages are handled
// without a pause: the queue has always more than a prefetch, so that no pause guesses what is on its way.
func TestTheOrderIsKeptAcrossPauses(t *testing.T) {
	t.Parallel()
	const keys, each, prefetch = 4, 75, 50
	var uuids []string
	for i := range each {
		for key := range keys {
			uuids = append(uuids, fmt.Sprintf("%d-%04d", key, i))
		}
	}
	keyOf := func(msg *message.Message) string { key, _, _ := strings.Cut(msg.UUID, "-"); return key }
	for kind, arguments := range map[string]amqp091.Table{"quorum": quorum, "classic": classic} {
		for name, c := range map[string]config{
			"one at a time": {Concurrency: 1, Prefetch: prefetch},
			"with keys":     {Concurrency: 3, Prefetch: prefetch, OrderKey: keyOf},
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				q := newQueue(t, arguments)
				q.publish(t, uuids...)
				p := newTap(-1)
				c.Gate = p.Gate
				connection, _, messages := q.subscribe(t, broker.URL(t), c)
				handled := newLedger()
				var running [keys]atomic.Int32
				handle(messages, func(msg *message.Message) {
					key := msg.UUID[0] - '0'
					assert.EqualValues(t, 1, running[key].Add(1), "one message of a key at a time")
					handled.add(msg.UUID)
					time.Sleep(rand.N(2 * time.Millisecond)) // the duration of the work
					running[key].Add(-1)
					msg.Ack()
				})
				enough := func(n int) {
					t.Helper()
					broker.Eventually(t, soon, func() bool { return handled.distinct() >= n }, "messages are handled")
				}
				for round := 1; len(uuids)-handled.distinct() > 2*prefetch; round++ {
					enough(handled.distinct() + 20)
					p.limit(0)
					// What comes back after the resumption is behind what is delivered first.
					broker.Eventually(t, soon, func() bool {
						return q.consumers(t) == 0 && q.ready(t) == len(uuids)-handled.distinct()
					}, "paused, and all messages are back")
					p.limit([]int{1, 2, -1}[round%3])
				}
				p.limit(-1)
				enough(len(uuids))
				require.Empty(t, connection.Health().Subscriptions[0].LastError, "the channel is the first one")
				got := handled.inOrder()
				if c.OrderKey == nil {
					assert.Equal(t, uuids, got)
				}
				assert.Len(t, got, len(uuids), "no message is handled twice")
				position := map[byte]int{}
				for _, uuid := range got {
					require.Equal(t, fmt.Sprintf("%c-%04d", uuid[0], position[uuid[0]]), uuid)
					position[uuid[0]]++
				}
			})
		}
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
