package subscriber_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

// countsNacks reports whether the broker counts basic.nack towards the delivery limit of quorum queues: before 4.3 it does.
func countsNacks(t *testing.T) bool {
	t.Helper()
	version, _ := broker.Connect(t).Properties["version"].(string)
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	require.NoError(t, err, version)
	return major < 4 || major == 4 && minor < 3
}

// TestCloseWhileTheBrokerDoesNotAnswer: a shutdown ends all the same.
func TestCloseWhileTheBrokerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for _, pausing := range []bool{false, true} {
		t.Run(fmt.Sprint("pausing ", pausing), func(t *testing.T) {
			t.Parallel()
			q, p := newQueue(t, classic), newTap(-1)
			q.publish(t, names("message", 40)...)
			proxy, uri := broker.Proxy(t)
			connection, s, messages := q.subscribe(t, uri+"?heartbeat=60", config{Prefetch: 30, Gate: p.Gate})
			msg := receive(t, messages)
			proxy.Disturb(broker.Line{}, broker.Line{Lost: true})
			if pausing {
				p.limit(0)
				broker.Eventually(t, soon, func() bool { return q.consumers(t) == 0 }, "the broker has cancelled the consumer")
			}
			closed := make(chan struct{})
			go func() {
				assert.NoError(t, s.Close())
				assert.NoError(t, connection.Close())
				close(closed)
			}()
			msg.Ack()
			expect(t, closed, "Close returns")
			proxy.Stop()
			broker.Eventually(t, soon, func() bool { return q.ready(t) >= 39 }, "the broker has them back")
		})
	}
}

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
			if name != "pause of a classic queue" && countsNacks(t) {
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
