package subscriber_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
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

func TestTheEndOfSubscribesContextEndsOneSubscription(t *testing.T) {
	t.Parallel()
	first, second := newQueue(t, classic), newQueue(t, classic)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	connection := open(t, broker.URL(t))
	s, err := newSubscriber(connection, config{}, nil)
	require.NoError(t, err)
	handled := newLedger()
	entered, leave := make(chan struct{}), make(chan struct{})
	stopped := router.AddConsumerHandler("first", first.name, s, func(msg *message.Message) error {
		close(entered)
		<-leave
		handled.add(msg.UUID)
		return msg.Context().Err()
	})
	router.AddConsumerHandler("second", second.name, s, func(msg *message.Message) error {
		handled.add(msg.UUID)
		return nil
	})
	go func() { _ = router.Run(context.Background()) }()
	broker.Receive(t, router.Running(), "the router runs")
	first.publish(t, "in flight")
	broker.Receive(t, entered, "the handler is called")
	stopped.Stop()
	expect(t, stopped.Stopped(), "the handler stops")
	first.publish(t, "left in the queue")
	second.publish(t, "message")
	broker.Eventually(t, soon, func() bool { return handled.of("message") == 1 }, "the other handler goes on")
	close(leave)
	broker.Eventually(t, soon, func() bool { return len(connection.Health().Subscriptions) == 1 }, "the subscription is over")
	require.NoError(t, router.Close())
	assert.Equal(t, 1, handled.of("in flight"))
	content := first.content(t)
	assert.Len(t, content, 1, "what was in flight is acked")
	assert.Contains(t, content, "left in the queue")
}

func TestCloseGivesUpWhatIsNotSettled(t *testing.T) {
	t.Parallel()
	q := newQueue(t, quorum)
	q.publish(t, "acked in time", "acked after its context", "nacked", "never settled")
	s, err := newSubscriber(open(t, broker.URL(t)), config{CloseTimeout: 300 * time.Millisecond, NackInitial: time.Hour,
		NackMax: time.Hour}, nil)
	require.NoError(t, err)
	type key string
	messages, err := s.Subscribe(context.WithValue(t.Context(), key("of Subscribe"), "a"), q.name)
	require.NoError(t, err)
	byName := map[string]*message.Message{}
	for range 4 {
		msg := receive(t, messages)
		assert.Equal(t, "a", msg.Context().Value(key("of Subscribe")))
		require.NoError(t, msg.Context().Err())
		byName[msg.UUID] = msg
	}
	byName["nacked"].Nack()
	expect(t, byName["nacked"].Context().Done(), "the context of a nacked message ends")
	var group sync.WaitGroup
	begin := time.Now()
	for range 8 { // concurrent calls all wait
		group.Go(func() {
			assert.NoError(t, s.Close())
			assert.Greater(t, time.Since(begin), 300*time.Millisecond)
		})
	}
	byName["acked in time"].Ack()
	expect(t, byName["acked in time"].Context().Done(), "the context of an acked message ends")
	late := byName["acked after its context"]
	expect(t, late.Context().Done(), "the context ends")
	late.Ack()
	group.Wait()
	assert.Less(t, time.Since(begin), 20*time.Second, "a nack's pause does not delay it")
	_, err = s.Subscribe(t.Context(), q.name)
	require.ErrorIs(t, err, subscriber.ErrClosed)
	q.waitReady(t, 2)
	content := q.content(t)
	assert.Contains(t, content, "never settled")
	assert.Contains(t, content, "nacked")
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
			_, err := proxy.Toxics.AddToxicJson(strings.NewReader(
				`{"name":"hold","type":"timeout","stream":"downstream","toxicity":1,"attributes":{"timeout":0}}`))
			require.NoError(t, err)
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
	for name, key := range keyings {
		for _, how := range []string{"pause", "pause of a classic queue", "shutdown"} {
			t.Run(how+" "+name, func(t *testing.T) {
				t.Parallel()
				const inFlight, fetched, all = 16, 50, 116
				arguments := quorum
				if how == "pause of a classic queue" {
					arguments = classic
				}
				q, p := newQueue(t, arguments), newTap(-1)
				q.publish(t, names("message", all)...)
				connection, s, messages := q.subscribe(t, broker.URL(t), config{
					Prefetch: fetched, OrderKey: key, CloseTimeout: time.Minute, Gate: p.Gate,
				})
				handled := map[string]*message.Message{}
				for range inFlight { // the default of Concurrency
					msg := receive(t, messages)
					handled[msg.UUID] = msg
				}
				q.waitReady(t, all-fetched)
				closed := make(chan struct{})
				if how == "shutdown" {
					go func() { _ = s.Close(); close(closed) }()
				} else {
					p.limit(0)
				}
				q.waitReady(t, all-inFlight)
				if how == "shutdown" {
					assert.Nil(t, broker.Receive(t, messages, "the channel is closed"), "nothing more is handed out")
				} else {
					broker.Eventually(t, soon, func() bool { return !connection.Health().Subscriptions[0].Consuming },
						"health reports it")
					assert.Equal(t, inFlight, connection.Health().Subscriptions[0].InFlight)
				}
				for _, msg := range handled {
					require.NoError(t, msg.Context().Err(), "handlers go on")
					require.True(t, msg.Ack())
				}
				if how != "shutdown" {
					q.waitPaused(t, all-inFlight)
					begin := time.Now()
					require.NoError(t, s.Close())
					assert.Less(t, time.Since(begin), 50*time.Second, "CloseTimeout is a minute")
					close(closed)
				}
				expect(t, closed, "Close returns when all are settled")
				assert.True(t, p.Ended(), "the subscription is detached")

				want := int64(0)
				if how != "pause of a classic queue" && countsNacks(t) {
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
}
