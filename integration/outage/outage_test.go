// Package outage_test has a handler whose dependency is down, on a broker.
package outage_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOutageWithABreaker(t *testing.T) {
	t.Parallel()
	const before, meanwhile = 300, 200 // messages that wait when an outage begins, and that arrive in it
	// The pauses are long enough to see the queue in one of them.
	a := testapp.New(t, func(c *config.Config) {
		c.Policy.Breaker = &retry.Breaker{Pause: 500 * time.Millisecond, MaxPause: 2 * time.Second}
	})
	orders, handled := a.Queue("orders"), testapp.NewLedger()
	var down atomic.Bool
	down.Store(true)
	a.Handle(orders, 16, func(msg *message.Message) error {
		if down.Load() {
			return errors.New("the bank is down")
		}
		return handled.Handle(msg)
	})
	a.Run()
	ids := testapp.IDs(before + meanwhile)
	paused := func() []string { return a.Health().Subscriptions[0].Paused }
	a.Publish(orders, ids[:before]...)
	testapp.Eventually(t, func() bool { return len(paused()) == 1 }, "it pauses")
	assert.Equal(t, []string{"failing"}, paused())
	a.Publish(orders, ids[before:]...)

	channel := broker.Channel(t)
	is := func(ready, consumers int) bool {
		state, err := channel.QueueDeclarePassive(orders, true, false, false, false, nil)
		require.NoError(t, err)
		return state.Messages == ready && state.Consumers == consumers
	}
	wholePause := func() bool { return is(before+meanwhile, 0) }
	testapp.Eventually(t, wholePause, "no consumer, and all messages are on the work queue: none is unacknowledged")
	testapp.Eventually(t, func() bool { return len(a.Events(retry.Snoozed)) >= 4 }, "probes fail")
	testapp.Eventually(t, wholePause, "it is so in each pause")
	require.NoError(t, a.Health().Ready(), "a paused handler is no fault")

	down.Store(false)
	testapp.Eventually(t, func() bool { return handled.Len() == before+meanwhile }, "all are handled")
	testapp.Eventually(t, func() bool { return is(0, 1) && paused() == nil }, "and it goes on")
	assert.Empty(t, a.Events(retry.DeadLettered))
	assert.Empty(t, a.Events(retry.GivenBack))
	assert.Empty(t, handled.Twice())
	assert.Zero(t, testapp.Depth(t, orders+".dead"))
}
