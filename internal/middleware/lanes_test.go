package middleware_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/middleware"
)

// Any tier and any jitter: lanes are valid tiers, ascending and distinct, none is shorter than the tier, and none is longer than the
// jitter allows, but for the rounding to whole milliseconds.
func TestLanesAreOnlyEverLonger(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 20_000 {
		magnitude := time.Duration(math.Pow(float64(backoff.MaxDelay/time.Millisecond), random.Float64()))
		delay := min(max(magnitude, 1)*time.Millisecond, backoff.MaxDelay)
		jitter := 1 - random.Float64() // above 0, at most 1
		lanes := middleware.Lanes(delay, jitter)
		require.NoError(t, backoff.Schedule(lanes).Validate(), "%v, %v, seed %d", delay, jitter, seed)
		require.Equal(t, delay, lanes[0], "%v, %v, seed %d", delay, jitter, seed)
		require.LessOrEqual(t, len(lanes), 8, "%v, %v, seed %d", delay, jitter, seed)
		for i, lane := range lanes[1:] {
			require.Greater(t, lane, lanes[i], "%v, %v, seed %d", delay, jitter, seed)
		}
		width := float64(delay) * jitter
		longest := float64(slices.Max(lanes) - delay)
		require.LessOrEqual(t, longest, width*7/8+float64(time.Millisecond)/2+1e3, "%v, %v, seed %d", delay, jitter, seed)
		if width >= float64(8*time.Millisecond) && float64(delay)*2 <= float64(backoff.MaxDelay) {
			require.Len(t, lanes, 8, "%v, %v, seed %d", delay, jitter, seed)
			require.GreaterOrEqual(t, longest, width*7/8-float64(time.Millisecond)/2-1e3, "%v, %v, seed %d", delay, jitter, seed)
		}
	}
}

func TestLanesOfSomeTiers(t *testing.T) {
	ms := func(all ...time.Duration) (lanes []time.Duration) {
		for _, d := range all {
			lanes = append(lanes, d*time.Millisecond)
		}
		return lanes
	}
	for _, row := range []struct {
		delay  time.Duration
		jitter float64
		want   []time.Duration
	}{
		{5 * time.Second, 0.2, ms(5000, 5125, 5250, 5375, 5500, 5625, 5750, 5875)},
		{100 * time.Millisecond, 0.25, ms(100, 103, 106, 109, 113, 116, 119, 122)},
		{time.Second, 1, ms(1000, 1125, 1250, 1375, 1500, 1625, 1750, 1875)},
		{5 * time.Millisecond, 0.5, ms(5, 6, 7)},
		{time.Millisecond, 0.2, ms(1)},
		{time.Second, 0, ms(1000)},
		{time.Second, -0.1, ms(1000)},
		{time.Second, 1.1, ms(1000)},
		{time.Second, math.NaN(), ms(1000)},
		{time.Second, math.Inf(1), ms(1000)},
		{backoff.MaxDelay, 0.2, []time.Duration{backoff.MaxDelay}},
		{-time.Second, 0.2, ms(-1000)},
		{0, 0.2, ms(0)},
		{1, 0.2, []time.Duration{1}},
		{math.MaxInt64, 0.2, []time.Duration{math.MaxInt64}},
	} {
		assert.Equal(t, row.want, middleware.Lanes(row.delay, row.jitter), "%v, %v", row.delay, row.jitter)
	}
}
