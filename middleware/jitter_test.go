package middleware_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestJitterOutOfBoundsIsRefused(t *testing.T) {
	for _, wrong := range []float64{-0.1, 1.01, math.NaN(), math.Inf(1), math.Inf(-1)} {
		config := configOf(&recorder{})
		config.Policy.Jitter = wrong
		require.ErrorContains(t, config.Policy.Validate(), "Jitter is ")
		require.ErrorContains(t, config.Policy.Validate(), "must be from 0 (none) to 1")
		require.ErrorContains(t, retry.Options{Policy: &config.Policy}.Validate(), "Jitter is ")
	}
	for _, right := range []float64{0, math.SmallestNonzeroFloat64, 0.2, 1} {
		config := configOf(&recorder{})
		config.Policy.Jitter = right
		require.NoError(t, config.Policy.Validate())
	}
}

// The lanes of the schedules' delays are tiers. Extra tiers have none: no delay that is spread waits there.
func TestTiersHaveTheLanes(t *testing.T) {
	config := configOf(&recorder{})
	config.Policy.Schedule = backoff.Schedule{time.Second, time.Second}
	config.Policy.Rules = []retry.Rule{{If: retry.Is(errDown), Then: retry.RetryWith(backoff.Schedule{time.Minute})}}
	config.Policy.ExtraTiers = []time.Duration{time.Hour}
	config.Policy.Jitter = 0.4
	want := backoff.Schedule{time.Hour}
	for _, delay := range []time.Duration{time.Second, time.Minute} {
		want = append(want, backoff.Lanes(delay, 0.4)...)
	}
	assert.Equal(t, want.Tiers(), config.Tiers())
	assert.Len(t, config.Tiers(), 17)
}

// Each failure draws its own number.
func TestFailuresAreSpreadOverAllLanes(t *testing.T) {
	tiered, sent := setup(t, tiersWait, observing, func(c *settings) { c.Policy.Jitter = 0.2 })
	h := tiered.Middleware(failing(errDown))
	const failures = 2000 // a lane is left out once in 1e115 runs
	for range failures {
		handles(t, h, messageOf(routed))
	}
	topics, seen := map[string]int{}, map[string]int{}
	for _, c := range sent.copies {
		topics[c.topic]++
	}
	for _, e := range sent.events {
		seen[e.Tier.String()+".orders"]++
		assert.Equal(t, time.Duration(e.Tier), e.Delay)
		assert.Equal(t, 175*time.Millisecond, e.Spread)
	}
	assert.Equal(t, topics, seen)
	assert.Len(t, topics, 8)
	for _, lane := range backoff.Lanes(time.Second, 0.2) {
		assert.Greater(t, topics[backoff.Tier(lane).String()+".orders"], failures/8/2, "%v", lane)
	}
}

func TestSimulateHasTheShortestDelaysAndTheirSpread(t *testing.T) {
	for _, tiersWait := range []bool{true, false} {
		tiered, _ := setup(t, func(c *settings) { c.Policy.Jitter, c.TiersWait = 0.2, tiersWait })
		eighths := time.Duration(8) // of the jitter
		if tiersWait {
			eighths = 7
		}
		call := 0
		for at, e := range tiered.Simulate(backend.SimulatedMessage{Handle: always(errDown)}) {
			delays := configOf(nil).Policy.Schedule
			if call < len(delays) {
				assert.Equal(t, delays[call], e.Delay)
				assert.Equal(t, delays[call]/5/8*eighths, e.Spread)
			} else {
				assert.Equal(t, []any{retry.DeadLettered, 71 * time.Second, time.Duration(0)}, []any{e.Outcome, at, e.Spread})
			}
			call++
		}
		assert.Equal(t, 5, call)
	}
}
