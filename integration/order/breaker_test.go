package order_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

const outageKeys = 40

// An outage is a dependency of the handlers of two processes. After half of the messages it is down for some of them.
type outage struct {
	*world
	apps  [2]*app
	down  [2]atomic.Bool
	begin func()
	all   []*message.Message
}

// newOutage publishes the messages. The pauses are long enough to see the queues in one of them.
func newOutage(t *testing.T, processes ...int) *outage {
	t.Helper()
	o := &outage{world: newWorld(t), all: messages(outageKeys, 20, never)}
	o.begin = sync.OnceFunc(func() {
		for _, i := range processes {
			o.down[i].Store(true)
		}
	})
	o.config.Policy.Schedule = backoff.Schedule{200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond}
	o.config.Policy.Breaker = &retry.Breaker{Least: 4, Pause: 500 * time.Millisecond, MaxPause: 2 * time.Second}
	half := len(o.all) / 2
	for i := range o.apps {
		o.apps[i] = o.start(retry.Options{}, func(msg *message.Message) error {
			if o.sink.count() >= half {
				o.begin()
			}
			if o.down[i].Load() {
				return errDown
			}
			return o.sink.slowly(msg)
		})
	}
	o.publish(o.apps[0], o.all)
	for _, i := range processes {
		testapp.Eventually(t, func() bool { return o.paused(i) }, "process %d pauses", i)
	}
	return o
}

func (o *outage) paused(i int) bool { return o.apps[i].Health().Subscriptions[0].Paused != nil }

// consumers is how many partitions have an active consumer.
func (o *outage) consumers(channel *amqp091.Channel) (active int) {
	o.t.Helper()
	for _, queue := range o.partitions(4) {
		state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		require.NoError(o.t, err)
		active += state.Consumers
	}
	return active
}

// ends waits until all messages are handled. Each was handled after the one before it, and none is a dead letter.
func (o *outage) ends() {
	o.t.Helper()
	testapp.Eventually(o.t, func() bool { return o.sink.count() == len(o.all) }, "all are handled")
	o.settled(4)
	o.sink.inOrder(o.t)
	assert.Zero(o.t, o.sink.rewinds, "a pause waits for what runs, and sends its acks")
	assert.Zero(o.t, testapp.Depth(o.t, o.queue+".dead"))
	for _, a := range o.apps {
		assert.Empty(o.t, a.Events(retry.DeadLettered))
	}
}

// TestABreakerGivesAllBack in each pause, and a probe that fails keeps its place.
func TestABreakerGivesAllBack(t *testing.T) {
	t.Parallel()
	o := newOutage(t, 0, 1)
	channel := broker.Channel(t)
	wholePause := func() bool { return o.consumers(channel) == 0 && o.ordered(4) == len(o.all)-o.sink.count() }
	testapp.Eventually(t, wholePause, "no consumer, and all messages are on their partitions: none is unacknowledged")
	handled := o.sink.count()
	snoozed := func() int { return len(o.apps[0].Events(retry.Snoozed)) + len(o.apps[1].Events(retry.Snoozed)) }
	testapp.Eventually(t, func() bool { return snoozed() >= 4 }, "probes fail")
	testapp.Eventually(t, wholePause, "it is so in each pause")
	assert.Equal(t, handled, o.sink.count())
	for i, a := range o.apps {
		require.NoError(t, a.Health().Ready(), "a paused handler is no fault")
		o.down[i].Store(false)
	}
	o.ends()
}

// TestABreakerOfOneProcess gives its partitions to the other one, and gets its share of them after the outage.
func TestABreakerOfOneProcess(t *testing.T) {
	t.Parallel()
	o := newOutage(t, 0)
	testapp.Eventually(t, func() bool { return o.sink.count() == len(o.all) }, "the other one handles all")
	assert.False(t, o.paused(1))
	o.down[0].Store(false)
	testapp.Eventually(t, func() bool {
		if o.sink.count() == len(o.all) { // more of each key
			var more []*message.Message
			for k := range outageKeys {
				more = append(more, numbered(fmt.Sprint("customer-", k), len(o.all)/outageKeys, 0))
			}
			o.publish(o.apps[1], more)
			o.all = append(o.all, more...)
		}
		return !o.paused(0)
	}, "a probe succeeds")
	o.ends()
}
