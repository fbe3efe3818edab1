package gate_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/retry"
)

// A valve keeps the limits that it got, and has places.
type valve struct {
	limits []int
	taken  int
}

func (v *valve) Taken() int { return v.taken }

func (v *valve) Limit(n int) { v.limits = append(v.limits, n) }

func TestTheSmallestLimitIsTheEffectiveOne(t *testing.T) {
	g := gate.New(16)
	assert.Equal(t, 16, g.Concurrency())
	assert.Equal(t, gate.None, g.Limit())
	assert.Nil(t, g.Paused())
	for _, step := range []struct {
		reason gate.Reason
		limit  int
		want   int
		paused []gate.Reason
	}{
		{gate.Failing, 4, 4, []gate.Reason{"failing"}},
		{gate.Holding, 8, 4, []gate.Reason{"failing", "holding"}},
		{gate.Operator, 0, 0, []gate.Reason{"failing", "holding", "paused"}},
		{gate.Failing, 0, 0, []gate.Reason{"failing", "holding", "paused"}},
		{gate.Operator, -1, 0, []gate.Reason{"failing", "holding"}},
		{gate.Failing, 1, 1, []gate.Reason{"failing", "holding"}},
		{gate.Failing, -7, 8, []gate.Reason{"holding"}},
		{gate.Failing, -1, 8, []gate.Reason{"holding"}},
		{gate.Holding, -1, gate.None, nil},
	} {
		g.Set(step.reason, step.limit)
		assert.Equal(t, step.want, g.Limit(), "%+v", step)
		for range 20 { // the order of a map is random
			assert.Equal(t, step.paused, g.Paused(), "%+v", step)
		}
	}
}

func TestEachValveGetsEveryChange(t *testing.T) {
	g := gate.New(16)
	first, second := &valve{}, &valve{}
	endFirst := g.Attach(first)
	g.Set(gate.Operator, 0)
	endSecond, endTwice := g.Attach(second), g.Attach(second)
	g.Set(gate.Failing, 0)
	g.Set(gate.Failing, 1)
	g.Set(gate.Operator, -1)
	endFirst()
	endTwice()
	g.Set(gate.Failing, -1)
	endSecond()
	endSecond()
	g.Set(gate.Failing, 0)
	assert.Equal(t, []int{-1, 0, 1}, first.limits)
	assert.Equal(t, []int{0, 0, 1, 1, -1}, second.limits)
}

func TestEnterUnderALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gate.New(0)
		before := g.Enter(t.Context(), nil)
		require.NotNil(t, before, "without a limit")
		g.Set(gate.Failing, 1)

		places := make(chan *gate.Place, 3)
		for range 3 {
			go func() { places <- g.Enter(t.Context(), nil) }()
		}
		entered := func() int { synctest.Wait(); return len(places) }
		assert.Zero(t, entered(), "the message from before has the place")
		g.Set(gate.Failing, 0)
		assert.Zero(t, entered(), "paused")
		g.Set(gate.Failing, 1)
		assert.Equal(t, 1, entered(), "the message from before the pause takes no place")
		before.Leave()
		assert.Equal(t, 1, entered(), "and gives none back")
		(<-places).Leave()
		assert.Equal(t, 1, entered())
		g.Set(gate.Failing, 2)
		assert.Equal(t, 2, entered())
		g.Set(gate.Failing, 0)
		g.Set(gate.Failing, -1)
		assert.NotNil(t, g.Enter(t.Context(), nil))
	})
}

// A watcher counts its calls.
type watcher struct {
	changes int
	keys    map[string]retry.KeyHealth
}

func (w *watcher) Changed() { w.changes++ }

func (w *watcher) Keys() map[string]retry.KeyHealth { return maps.Clone(w.keys) }

func (w *watcher) Seen(string) bool { return false }

func TestTheWatcherSeesSubscriptionsBeginAndEnd(t *testing.T) {
	g := gate.New(16)
	assert.Nil(t, g.Watcher())
	assert.False(t, g.Attached())
	assert.False(t, g.Ended(), "none has begun")
	w := &watcher{}
	assert.Same(t, w, g.Watch(w))
	assert.Same(t, w, g.Watch(&watcher{}), "it keeps the first one")
	assert.Same(t, w, g.Watcher())
	first, second := g.Attach(&valve{}), g.Attach(&valve{})
	first()
	assert.True(t, g.Attached())
	assert.False(t, g.Ended())
	second()
	assert.False(t, g.Attached())
	assert.True(t, g.Ended())
	assert.Equal(t, 4, w.changes)
	g.Attach(&valve{})
	assert.False(t, g.Ended(), "it has begun again")
}

func TestHoldPausesAtHalfAndResumesAtAQuarter(t *testing.T) {
	for _, c := range []struct{ concurrency, closes, opens int }{
		{1, 1, 0}, {2, 1, 0}, {3, 2, 0}, {4, 2, 1}, {16, 8, 4},
	} {
		g := gate.New(c.concurrency)
		for held := 1; held <= c.concurrency; held++ {
			assert.Equal(t, held <= c.closes, g.Hold(), "%+v: %d held", c, held)
			assert.Equal(t, held, g.Held())
			assert.Equal(t, held >= c.closes, g.Limit() == 0, "%+v: %d held", c, held)
		}
		for held := c.concurrency - 1; held >= 0; held-- {
			g.Release()
			assert.Equal(t, held > c.opens, g.Limit() == 0, "%+v: %d held", c, held)
		}
	}
	unknown := gate.New(0)
	assert.True(t, unknown.Hold())
	assert.Equal(t, gate.None, unknown.Limit(), "half of what is not known")
}

func TestAHandlerThatIsAddedAgainHasAnotherGate(t *testing.T) {
	var h gate.Handlers
	first := h.Add("billing", 4)
	detach := first.Attach(&valve{})
	assert.Same(t, first, h.Add("billing", 8), "it goes on")
	first.Hold()
	first.Set(gate.Failing, 0)
	detach()
	second := h.Add("billing", 8)
	assert.Equal(t, 8, second.Concurrency())
	assert.Zero(t, second.Held())
	assert.Empty(t, second.Paused())

	require.NoError(t, h.Pause("billing"))
	second.Attach(&valve{})()
	third := h.Add("billing", 8)
	assert.NotSame(t, second, third)
	assert.Equal(t, []gate.Reason{gate.Operator}, third.Paused(), "an operator has paused it")
}

func TestHandlersAreFoundByName(t *testing.T) {
	var h gate.Handlers
	require.EqualError(t, h.Pause("billing"), `no handler is named "billing": the connection has no handlers yet`)
	billing := h.Add("billing", 4)
	assert.Same(t, billing, h.Add("billing", 8), "handlers of one name share a gate")
	other := h.Add("archive", 1)
	require.EqualError(t, h.Resume("bill"), `no handler is named "bill": the handlers are "archive", "billing"`)

	require.NoError(t, h.Pause("billing"))
	require.NoError(t, h.Pause("billing"), "again")
	billing.Set(gate.Failing, 0)
	billing.Hold()
	assert.Equal(t, 0, billing.Limit())
	assert.Equal(t, gate.None, other.Limit())
	assert.Same(t, billing, h.Find("billing"))
	since := billing.Since()
	assert.Equal(t, []gate.Reason{gate.Failing, gate.Operator}, billing.Paused())
	assert.False(t, since.IsZero())
	assert.Equal(t, 1, billing.Held())
	require.NoError(t, h.Resume("billing"))
	billing.Set(gate.Failing, 2)
	assert.Equal(t, []gate.Reason{gate.Failing}, billing.Paused(), "the other reason stays")
	assert.Equal(t, since, billing.Since(), "since the first reason")
	assert.Equal(t, 2, billing.Limit())
	billing.Set(gate.Failing, gate.None)
	assert.Nil(t, billing.Paused())
	assert.Zero(t, billing.Since())
	assert.Nil(t, h.Find("unknown"))
}

func TestKeysOfAnOperatorAreFirst(t *testing.T) {
	g := gate.New(16)
	w := &watcher{keys: map[string]retry.KeyHealth{}}
	g.Watch(w)
	for i := range 30 {
		w.keys[string(rune('a'+i))] = retry.KeyHealth{Paused: "failing", Parked: uint64(100 + i)}
	}
	w.keys["waited"] = retry.KeyHealth{Parked: 1000}
	w.keys["A"] = retry.KeyHealth{Paused: "slow", Limit: 7, Parked: 2000}
	decided := map[string]gate.Decision{"over": {}, "resumed": {Limit: -1, Until: time.Now().Add(time.Hour)}}
	for i := range 20 {
		decided[string(rune('A'+i))] = gate.Decision{Limit: i % 2, Until: time.Now().Add(time.Hour)}
	}
	g.Decide(decided)
	keys := g.Keys()
	require.Len(t, keys, 20)
	for i, key := range keys {
		assert.Equal(t, gate.KeyState{Key: string(rune('A' + i)), KeyHealth: retry.KeyHealth{
			Paused: []string{"paused", "limited"}[i%2], Until: key.Until, Limit: i % 2, Parked: w.keys[key.Key].Parked}}, key)
	}
	g.Decide(nil)
	assert.Equal(t, uint64(129), g.Keys()[1].Parked, "then the limited ones")
}

// The race detector sees a gate that does not lock.
func TestTheLimitIsNeverExceeded(t *testing.T) {
	g := gate.New(8)
	const limit = 3
	g.Set(gate.Failing, limit)
	var inside atomic.Int64
	var all sync.WaitGroup
	for i := range uint64(16) {
		random := rand.New(rand.NewPCG(i, 1))
		all.Go(func() {
			for range 500 {
				switch random.IntN(8) {
				case 0:
					g.Set(gate.Operator, 1+random.IntN(2)) // a pause would begin a new count
					g.Set(gate.Operator, -1)
				case 1:
					g.Attach(&valve{})()
					_, _, _ = g.Paused(), g.Held(), g.Limit()
				default:
					place := g.Enter(context.Background(), nil)
					assert.LessOrEqual(t, inside.Add(1), int64(limit))
					inside.Add(-1)
					place.Leave()
				}
			}
		})
	}
	all.Wait()
}
