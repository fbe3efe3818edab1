package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
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
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

func TestHandlersAreInFlightAtOnce(t *testing.T) {
	t.Parallel()
	const concurrency = 16
	q := newQueue(t, classic)
	q.publish(t, names("message", 2*concurrency)...)
	_, _, messages := q.subscribe(t, broker.URL(t), config{})
	var first []*message.Message
	for range concurrency { // each of them is in flight until all are
		first = append(first, receive(t, messages))
	}
	select {
	case msg := <-messages:
		t.Fatalf("%s is in flight beyond the default of Concurrency", msg.UUID)
	case <-time.After(200 * time.Millisecond):
	}
	assert.Equal(t, concurrency, q.ready(t), "the broker has not sent more")
	first[7].Ack()
	next := receive(t, messages)
	handled := newLedger()
	for _, msg := range append(first, next) {
		handled.add(msg.UUID)
		msg.Ack()
	}
	for handled.distinct() < 2*concurrency {
		msg := receive(t, messages)
		handled.add(msg.UUID)
		msg.Ack()
	}
	for uuid, count := range handled.count {
		assert.Equal(t, 1, count, uuid)
	}
}

func TestConcurrencyOneKeepsTheOrderOfTheQueue(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]config{
		"prefetch 1":  {Concurrency: 1},
		"prefetch 50": {Concurrency: 1, Prefetch: 50},
		"with keys":   {Concurrency: 1, Prefetch: 50, OrderKey: func(msg *message.Message) string { return msg.UUID[len(msg.UUID)-1:] }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t, quorum)
			uuids := names("message", 300)
			q.publish(t, uuids...)
			_, _, messages := q.subscribe(t, broker.URL(t), config)
			handled := newLedger()
			handle(messages, func(msg *message.Message) {
				handled.add(msg.UUID)
				msg.Ack()
			})
			broker.Eventually(t, soon, func() bool { return handled.distinct() == len(uuids) }, "all are handled")
			assert.Equal(t, uuids, handled.inOrder())
		})
	}
}

func TestMessagesOfOneKeyKeepTheOrderOfTheQueue(t *testing.T) {
	t.Parallel()
	const keys, each = 8, 60
	q := newQueue(t, quorum)
	var uuids []string
	for i := range each {
		for key := range keys {
			uuids = append(uuids, fmt.Sprintf("%d-%04d", key, i))
		}
	}
	q.publish(t, uuids...)
	_, _, messages := q.subscribe(t, broker.URL(t), config{
		Prefetch: 64,
		OrderKey: func(msg *message.Message) string { key, _, _ := strings.Cut(msg.UUID, "-"); return key },
	})
	handled := newLedger()
	var running [keys]atomic.Int32
	var together, most atomic.Int32
	handle(messages, func(msg *message.Message) {
		key := msg.UUID[0] - '0'
		assert.EqualValues(t, 1, running[key].Add(1), "one message of a key at a time")
		for now := together.Add(1); ; {
			if old := most.Load(); now <= old || most.CompareAndSwap(old, now) {
				break
			}
		}
		handled.add(msg.UUID)
		time.Sleep(rand.N(3 * time.Millisecond)) // the duration of the work
		together.Add(-1)
		running[key].Add(-1)
		msg.Ack()
	})
	broker.Eventually(t, soon, func() bool { return handled.distinct() == len(uuids) }, "all are handled")
	assert.EqualValues(t, keys, most.Load(), "all keys are handled at the same time")
	position := map[byte]int{}
	overtaken := false
	previous := ""
	for _, uuid := range handled.inOrder() {
		assert.Equal(t, fmt.Sprintf("%c-%04d", uuid[0], position[uuid[0]]), uuid)
		position[uuid[0]]++
		overtaken = overtaken || previous > uuid[2:]
		previous = uuid[2:]
	}
	assert.True(t, overtaken, "keys overtake each other")
}

func TestOtherKeysOvertakeAMessageThatWaitsForItsKey(t *testing.T) {
	t.Parallel()
	q := newQueue(t, classic)
	q.publish(t, "slow-0", "slow-1", "slow-2", "fast-0", "free", "fast-1")
	_, _, messages := q.subscribe(t, broker.URL(t), config{
		Concurrency: 2, Prefetch: 6,
		OrderKey: func(msg *message.Message) string {
			if key, _, keyed := strings.Cut(msg.UUID, "-"); keyed {
				return key
			}
			return ""
		},
	})
	slow := receive(t, messages)
	assert.Equal(t, "slow-0", slow.UUID)
	for _, uuid := range []string{"fast-0", "free", "fast-1"} {
		msg := receive(t, messages)
		assert.Equal(t, uuid, msg.UUID, "the messages that wait take no place of the two handlers")
		msg.Ack()
	}
	slow.Ack()
	for _, uuid := range []string{"slow-1", "slow-2"} {
		msg := receive(t, messages)
		assert.Equal(t, uuid, msg.UUID)
		msg.Ack()
	}
}

func TestANackIsPacedAndOthersGoOn(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]amqp091.Table{"quorum": quorum, "classic": classic} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t, arguments)
			q.publish(t, "nacked")
			_, _, messages := q.subscribe(t, broker.URL(t), config{NackInitial: 20 * time.Millisecond, NackMax: 400 * time.Millisecond})
			handled := newLedger()
			var mu sync.Mutex
			var arrived []time.Time
			handle(messages, func(msg *message.Message) {
				handled.add(msg.UUID)
				if msg.UUID != "nacked" {
					msg.Ack()
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if arrived = append(arrived, time.Now()); len(arrived) == 8 {
					msg.Ack()
				} else {
					msg.Nack()
				}
			})
			q.publish(t, names("message", 500)...)
			broker.Eventually(t, soon, func() bool { return handled.distinct() == 501 }, "the others go on")
			broker.Eventually(t, soon, func() bool { return handled.of("nacked") == 8 }, "it comes back")
			mu.Lock()
			defer mu.Unlock()
			for i, least := range []time.Duration{20, 40, 80, 160, 320, 400, 400} {
				assert.GreaterOrEqual(t, arrived[i+1].Sub(arrived[i]), least*time.Millisecond, "after nack %d", i+1)
			}
			assert.Zero(t, q.ready(t))
		})
	}
}

func TestAMessageThatCannotBeUnmarshalledIsPaced(t *testing.T) {
	t.Parallel()
	q := newQueue(t, classic)
	q.publish(t, "unreadable", "panics", "none", "readable")
	var tries atomic.Int32
	_, s, messages := q.subscribe(t, broker.URL(t), config{
		NackInitial: 50 * time.Millisecond,
		Unmarshal: func(d amqp091.Delivery) (*message.Message, error) {
			require.NotNil(t, d.Acknowledger)
			switch string(d.Body) {
			case "unreadable":
				tries.Add(1)
				return nil, errors.New("unreadable")
			case "panics":
				panic("out of range")
			case "none":
				return nil, nil
			}
			return &message.Message{UUID: string(d.Body)}, nil // not made with message.NewMessage
		},
	})
	msg := receive(t, messages)
	assert.Equal(t, "readable", msg.UUID)
	msg.Ack()
	begin := time.Now()
	broker.Eventually(t, soon, func() bool { return tries.Load() >= 4 }, "it is tried again")
	assert.Less(t, int(tries.Load()), 10, "with pauses, after %s", time.Since(begin))
	require.NoError(t, s.Close())
	content := q.content(t)
	assert.Len(t, content, 3, "nothing is lost: %v", content)
	assert.NotContains(t, content, "readable")
}

// A function of the app ends its goroutine once, as FailNow of a test does.
func TestTheSubscriptionGoesOnAfterTheAppHasEndedItsGoroutine(t *testing.T) {
	t.Parallel()
	const first = "message-0000"
	for name, row := range map[string]func(c *config, exit func(uuid string)){
		"Unmarshal": func(c *config, exit func(string)) {
			c.Unmarshal = func(d amqp091.Delivery) (*message.Message, error) {
				exit(string(d.Body))
				return message.NewMessage(string(d.Body), nil), nil
			}
		},
		"Nacked": func(c *config, exit func(string)) {
			c.Nacked = func(msg *message.Message) bool {
				exit(msg.UUID)
				return false
			}
		},
		"OrderKey": func(c *config, exit func(string)) {
			c.Concurrency = 2
			c.OrderKey = func(msg *message.Message) string {
				exit(msg.UUID)
				return "one"
			}
		},
		"Unmarshal with OrderKey": func(c *config, exit func(string)) {
			c.Concurrency, c.OrderKey = 2, func(*message.Message) string { return "one" }
			c.Unmarshal = func(d amqp091.Delivery) (*message.Message, error) {
				exit(string(d.Body))
				return message.NewMessage(string(d.Body), nil), nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t, classic)
			q.publish(t, names("message", 3)...)
			var once, nacked sync.Once
			c := config{Concurrency: 1, NackInitial: 10 * time.Millisecond}
			row(&c, func(uuid string) {
				if uuid == first {
					once.Do(runtime.Goexit)
				}
			})
			_, s, messages := q.subscribe(t, broker.URL(t), c)
			l := newLedger()
			for l.distinct() < 3 {
				msg := receive(t, messages)
				nack := false
				if name == "Nacked" && msg.UUID == first {
					nacked.Do(func() { nack = true })
				}
				if nack {
					msg.Nack()
					continue
				}
				l.add(msg.UUID)
				msg.Ack()
			}
			require.NoError(t, s.Close())
			assert.Empty(t, q.content(t))
		})
	}
}

type key string

func TestAMessagesContext(t *testing.T) {
	t.Parallel()
	q := newQueue(t, classic)
	q.publish(t, names("message", 3)...)
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key("of Subscribe"), "a"))
	defer cancel()
	s, err := newSubscriber(open(t, broker.URL(t)), config{CloseTimeout: 3 * time.Second}, nil)
	require.NoError(t, err)
	messages, err := s.Subscribe(ctx, q.name)
	require.NoError(t, err)

	acked, nacked, kept := receive(t, messages), receive(t, messages), receive(t, messages)
	for _, msg := range []*message.Message{acked, nacked, kept} {
		assert.Equal(t, "a", msg.Context().Value(key("of Subscribe")))
		require.NoError(t, msg.Context().Err())
	}
	acked.Ack()
	expect(t, acked.Context().Done(), "the context of an acked message ends")
	cancel() // before the nack, so that it is not delivered again
	nacked.Nack()
	expect(t, nacked.Context().Done(), "the context of a nacked message ends")
	begin := time.Now()
	require.NoError(t, kept.Context().Err(), "it goes on after the end of Subscribe's context")
	expect(t, kept.Context().Done(), "the context of a message in flight ends after CloseTimeout")
	assert.Greater(t, time.Since(begin), 200*time.Millisecond)
	kept.Ack() // within the second that is left
	require.NoError(t, s.Close())
	assert.Len(t, q.content(t), 1, "only the nacked message is still there")
}

func TestTwoSubscribersShareAConnection(t *testing.T) {
	t.Parallel()
	name := broker.Name(t, "shared")
	connection, err := subscriber.Open(wire.Config{
		URI: broker.URL(t), AMQP: &amqp091.Config{Properties: amqp091.Table{"connection_name": name}},
	}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })
	handled := newLedger()
	var subscribers []*subscriber.Subscriber
	var closed []<-chan struct{}
	var queues []*queue
	for range 2 {
		s, err := newSubscriber(connection, config{}, nil)
		require.NoError(t, err)
		subscribers = append(subscribers, s)
		for range 3 {
			q := newQueue(t, classic)
			messages, err := s.Subscribe(t.Context(), q.name)
			require.NoError(t, err)
			closed = append(closed, handle(messages, func(msg *message.Message) { handled.add(msg.UUID); msg.Ack() }))
			queues = append(queues, q)
		}
	}
	for i, q := range queues {
		q.publish(t, names(fmt.Sprint("queue ", i), 50)...)
	}
	broker.Eventually(t, soon, func() bool { return handled.distinct() == 300 }, "all queues are consumed")
	health := connection.Health()
	require.NoError(t, health.Ready())
	assert.Len(t, health.Subscriptions, 6)
	management := broker.Management(t)
	broker.Eventually(t, soon, func() bool {
		connections, err := management.ListConnections()
		if err != nil {
			return false
		}
		count := 0
		for _, c := range connections {
			if c.ClientProperties["connection_name"] == name {
				count++
			}
		}
		return count == 1
	}, "over one connection")

	require.NoError(t, subscribers[0].Close())
	for _, c := range closed[:3] {
		expect(t, c, "the channels of the closed subscriber are closed")
	}
	queues[5].publish(t, "after")
	broker.Eventually(t, soon, func() bool { return handled.of("after") == 1 }, "the other subscriber goes on")
	require.NoError(t, connection.Close())
	for _, c := range closed {
		expect(t, c, "the channels of all subscribers are closed")
	}
	_, err = subscribers[1].Subscribe(t.Context(), "late")
	require.ErrorIs(t, err, subscriber.ErrClosed)
}

func TestTheFirstSubscribeReturnsErrors(t *testing.T) {
	t.Parallel()
	connection := open(t, broker.URL(t))
	refused := errors.New("no such topology")
	s, err := newSubscriber(connection, config{
		QueueOf: func(topic string) string {
			if topic == "long" {
				return strings.Repeat("x", 256)
			}
			return topic
		},
		Declare: func(d subscriber.Declaration, topic string) error {
			switch topic {
			case "refused":
				return refused
			case "panics":
				panic("no queue")
			}
			return nil
		},
	}, nil)
	require.NoError(t, err)
	missing := broker.Name(t, "missing")
	for topic, text := range map[string]string{
		"refused": `topic "refused": declare: no such topology`,
		"panics":  `topic "panics": declare: Declare panicked: no queue`,
		missing:   "404",
		"":        "its queue has no name",
		"long":    "256 bytes, at most 255",
	} {
		messages, err := s.Subscribe(t.Context(), topic)
		require.ErrorContains(t, err, text)
		assert.Nil(t, messages)
	}
	_, err = s.Subscribe(t.Context(), "refused")
	require.ErrorIs(t, err, refused)
	var cause *amqp091.Error
	_, err = s.Subscribe(t.Context(), missing)
	require.ErrorAs(t, err, &cause)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Subscribe(ended, "refused")
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, s.SubscribeInitialize("refused"), refused)
	require.NoError(t, s.SubscribeInitialize("fine"))

	q := newQueue(t, classic)
	q.publish(t, "after all of them")
	messages, err := s.Subscribe(t.Context(), q.name)
	require.NoError(t, err, "the connection is not harmed")
	receive(t, messages).Ack()
	assert.Len(t, connection.Health().Subscriptions, 1)
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.SubscribeInitialize("fine"), subscriber.ErrClosed)
}

func TestAHandlerThatEndsItsGoroutineBlocksNothingElse(t *testing.T) {
	t.Parallel()
	q := newQueue(t, classic)
	q.publish(t, append([]string{"goexit"}, names("message", 50)...)...)
	connection, s, messages := q.subscribe(t, broker.URL(t), config{Concurrency: 2, CloseTimeout: 100 * time.Millisecond})
	handled := newLedger()
	handle(messages, func(msg *message.Message) {
		handled.add(msg.UUID)
		if msg.UUID == "goexit" {
			runtime.Goexit()
		}
		msg.Ack()
	})
	broker.Eventually(t, soon, func() bool { return handled.distinct() == 51 }, "the others go on")
	broker.Eventually(t, soon, func() bool { return connection.Health().Subscriptions[0].InFlight == 1 }, "one is still in flight")
	begin := time.Now()
	require.NoError(t, s.Close())
	assert.Less(t, time.Since(begin), 3*time.Second)
	assert.Contains(t, q.content(t), "goexit")
}
