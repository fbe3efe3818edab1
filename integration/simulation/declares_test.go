package simulation

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/retry"
)

// A recorded app sends its methods over a wire that records them.
type recorded struct {
	retry.Connection
	*wire
	t    *testing.T
	stop func()
}

// record runs f with a recorded app in virtual time.
func record(t *testing.T, f func(t *testing.T, a *recorded), change ...func(*config.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &recorded{wire: &wire{broker: model.New(model.Config{Latency: time.Millisecond})}, t: t, stop: func() {}}
		defer a.broker.Stop()
		a.Connection = connected(t, a.broker, watermill.NopLogger{}, append([]func(*config.Config){func(c *config.Config) {
			c.Policy.Schedule = backoff.Schedule{100 * time.Millisecond, 300 * time.Millisecond}
			c.AMQP.Connection.AmqpConfig.Dial = a.dial
		}}, change...)...)
		f(t, a)
		a.stop()
		require.NoError(t, a.Close())
	})
}

// handle runs handlers of queues until the end of the test.
func (a *recorded) handle(queues ...string) {
	a.stop = handling(a.t, func(router *message.Router) {
		for i, queue := range queues {
			a.AddConsumerHandler(router, fmt.Sprint("handler ", i), queue, func(*message.Message) error { return nil })
		}
	})
}

// reconnect ends all connections, and waits until the app consumes again.
func (a *recorded) reconnect() {
	first := a.consuming()
	for number := range a.broker.Connections() {
		a.broker.Disturb(number, model.Reset)
	}
	time.Sleep(5 * time.Second)
	require.NoError(a.t, a.Health().Ready())
	require.NotSame(a.t, first, a.consuming())
}

// declared counts the methods that declare, but for passive ones: the checks of bindings and of queues send them, at times
// of their own.
func (r *recorder) declared() [2]int {
	return [2]int{r.count("queue.declare"), r.count("exchange.declare")}
}

// A copy whose tier is missing becomes a dead letter, as soon as it can.
func TestTheDeadLettersAreBoundLast(t *testing.T) {
	record(t, func(t *testing.T, a *recorded) {
		a.handle("orders")
		assert.Greater(t, a.consuming().at(t, "queue.bind orders.dead to retry"),
			a.consuming().at(t, "queue.bind orders.retry.100ms to retry"))
	})
}

func TestHandlersOfOneTopicDeclareOnce(t *testing.T) {
	var want [2]int
	record(t, func(t *testing.T, a *recorded) { a.handle("orders"); want = a.consuming().declared() })
	require.Positive(t, want[0])
	record(t, func(t *testing.T, a *recorded) {
		const handlers, further = 16, 8
		a.handle(slices.Repeat([]string{"orders"}, handlers)...)
		var subscribed sync.WaitGroup
		for i := range further { // at the same time
			s, err := a.Subscriber(fmt.Sprint("further ", i))
			require.NoError(t, err)
			subscribed.Go(func() {
				_, err := s.Subscribe(t.Context(), "orders")
				assert.NoError(t, err)
			})
		}
		subscribed.Wait()
		assert.LessOrEqual(t, a.consuming().count("channel.open"), handlers+further+3,
			"one for each handler, one that declares, and two for the checks of bindings")
		for _, name := range []string{"orders.retry.100ms", "orders.dead", "retry.orphans"} {
			assert.Equal(t, 1, a.consuming().count("queue.declare "+name), name)
		}
		assert.Equal(t, 2, a.dialled(), "the inspection has no connection of its own")
		for connection := range 2 {
			assert.Equal(t, handlers+further, a.consuming().count("basic.consume"))
			assert.Equal(t, want, a.consuming().declared(), "once for each connection")
			if connection == 0 {
				a.reconnect()
			}
		}
	})
}

// What a later handler adds is declared, without another inspection.
func TestASharedQueueOfSeveralSchedules(t *testing.T) {
	record(t, func(t *testing.T, a *recorded) {
		consume(t, a, "orders")
		inspected := a.consuming().count("queue.declare orders")
		require.Zero(t, a.consuming().count("queue.declare orders.retry.7s"))
		later, err := a.Subscriber("later", retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{7 * time.Second}}})
		require.NoError(t, err)
		for range 3 {
			_, err = later.Subscribe(t.Context(), "orders")
			require.NoError(t, err)
		}
		assert.Equal(t, 1, a.consuming().count("queue.declare orders.retry.7s"))
		assert.Equal(t, inspected, a.consuming().count("queue.declare orders"))
		assert.Equal(t, 2, a.dialled())
	})
}

func inGroup(c *config.Config) { c.Policy.TierGroup, c.Policy.ExtraTiers = "shop", c.Policy.Schedule }

// What the work queues of a group share is declared once for each connection, also when all of them declare at the same
// time after a reconnect.
func TestAGroupIsDeclaredOnceForEachConnection(t *testing.T) {
	record(t, func(t *testing.T, a *recorded) {
		var queues []string
		for i := range 16 {
			queues = append(queues, fmt.Sprint("orders", i))
		}
		a.handle(queues...)
		for connection := range 2 {
			sent := a.consuming()
			assert.Equal(t, len(queues), sent.count("basic.consume"))
			assert.LessOrEqual(t, sent.count("channel.open"), 3*len(queues)+1,
				"for each queue one that declares, one that consumes and one that binds, and one for the later checks")
			assert.LessOrEqual(t, sent.count("basic.qos"), len(queues))
			for _, name := range []string{"shop.retry.100ms", "shop.retry.300ms", "retry.orphans"} {
				assert.Equal(t, 1, sent.count("queue.declare "+name), name)
			}
			for _, name := range []string{"retry", "retry.return.any", "shop.retry", "shop.retry.return"} {
				assert.Equal(t, 1, sent.count("exchange.declare "+name), name)
			}
			if connection == 0 {
				a.reconnect()
			}
		}
	}, inGroup)
}

// An exchange that another work queue has declared, and that an operator has deleted since, is declared again for a
// further work queue.
func TestASharedExchangeIsDeletedBeforeAFurtherSubscription(t *testing.T) {
	for _, exchange := range []string{"retry", "shop.retry", "shop.retry.return"} {
		t.Run(exchange, func(t *testing.T) {
			record(t, func(t *testing.T, a *recorded) {
				consume(t, a, "orders")
				a.broker.DeleteExchange(exchange)
				consume(t, a, "mails")
			}, inGroup)
		})
	}
}

// Work queues of a group that subscribe at the same time share what is declared for the group, and not the fault of one
// of them: the dead-letter queue of the first one exists with other arguments.
func TestAFaultOfAWorkQueueIsNoneOfItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := model.New(model.Config{})
		defer broker.Stop()
		broker.DeclareQueue("orders0.dead", amqp091.Table{"x-queue-type": "quorum", "x-max-length": int64(5)})
		rabbit := connected(t, broker, watermill.NopLogger{}, func(c *config.Config) { c.Policy.TierGroup = "shop" })
		defer rabbit.Close()
		for number := range broker.Connections() {
			broker.Slow(number, time.Second, time.Second)
		}
		var subscribing sync.WaitGroup
		for i := range 4 {
			s, err := rabbit.Subscriber(fmt.Sprint("handler", i))
			require.NoError(t, err)
			subscribing.Go(func() {
				_, err := s.Subscribe(t.Context(), fmt.Sprint("orders", i))
				if i == 0 {
					assert.ErrorContains(t, err, "orders0.dead")
				} else {
					assert.NoError(t, err)
				}
			})
			time.Sleep(time.Second) // the first one declares what they share
		}
		subscribing.Wait()
	})
}
