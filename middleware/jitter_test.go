package middleware_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
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
