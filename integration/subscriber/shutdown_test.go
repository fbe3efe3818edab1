package subscriber_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/gate"
)

// TestWhatWasNotHandedOutGoesBack at a pause and at a shutdown, and counts no more deliveries than it must.
func TestWhatWasNotHandedOutGoesBack(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		arguments amqp091.Table
		shutdown  bool
	}{"pause": {quorum, false}, "pause of a classic queue": {classic, false}, "shutdown": {quorum, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const inFlight, fetched, all = 16, 50, 116
			q, p := newQueue(t, row.arguments), newTap(-1)
			q.publish(t, names("message", all)...)
			connection, s, messages := q.subscribe(t, broker.URL(t), config{
				Prefetch: fetched, CloseTimeout: time.Hour, Gate: p.Gate,
			})
			handled := map[string]*message.Message{}
			for range inFlight { // the default of Concurrency
				msg := receive(t, messages)
				handled[msg.UUID] = msg
			}
			q.waitReady(t, all-fetched)
			closed := make(chan error, 1)
			if row.shutdown {
				go func() { closed <- s.Close() }()
			} else {
				p.limit(0)
			}
			q.waitReady(t, all-inFlight)
			if row.shutdown {
				assert.Nil(t, broker.Receive(t, messages, "the channel is closed"), "nothing more is handed out")
			} else {
				broker.Eventually(t, soon, func() bool { return !connection.Health().Subscriptions[0].Consuming },
					"health reports it")
				assert.Equal(t, inFlight, connection.Health().Subscriptions[0].InFlight)
			}
			for _, msg := range handled {
				assert.NoError(t, msg.Context().Err(), "handlers go on")
				assert.True(t, msg.Ack())
			}
			if !row.shutdown {
				q.waitPaused(t, all-inFlight)
				go func() { closed <- s.Close() }()
			}
			require.NoError(t, broker.Receive(t, closed, "Close returns when all are settled: CloseTimeout is an hour"))
			assert.True(t, p.Ended(), "the subscription is detached")

			want := int64(0)
			if name != "pause of a classic queue" && broker.Version(t) < 403 { // a nack counts
				want = 1
			}
			content := q.content(t)
			assert.Len(t, content, all-inFlight)
			for i, uuid := range names("message", all) {
				delivery, found := content[uuid]
				assert.Equal(t, handled[uuid] == nil, found, uuid)
				count, _ := delivery.Headers["x-delivery-count"].(int64)
				switch {
				case !found:
				case i < fetched:
					assert.Equal(t, want, count, "%s was fetched and not handed out", uuid)
				default:
					assert.Zero(t, count, "%s was not fetched", uuid)
					assert.False(t, delivery.Redelivered, "%s was not fetched", uuid)
				}
			}
		})
	}
}

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
