package pauses

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestThePauseGrowsUpToTheLongest(t *testing.T) {
	for failures, most := range map[int]time.Duration{0: First, 1: 2 * First, 5: 32 * First, 6: Longest, 1 << 40: Longest} {
		for range 100 {
			pause := After(failures)
			assert.LessOrEqual(t, pause, most)
			assert.GreaterOrEqual(t, pause, most/2)
		}
	}
}

func TestAPauseDoublesUpToTheLongest(t *testing.T) {
	for times, want := range map[int64]time.Duration{
		0: 10 * time.Millisecond, 1: 20 * time.Millisecond, 8: 2560 * time.Millisecond, 9: Longest, 10: Longest,
		40: Longest, 63: Longest, 64: Longest, math.MaxInt64: Longest,
	} {
		assert.Equal(t, want, Doubled(10*time.Millisecond, times, Longest), times)
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		require.NoError(t, Sleep(t.Context(), time.Minute))
		assert.Equal(t, time.Minute, time.Since(begin))
		ends := errors.New("ends")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(ends) })
		require.ErrorIs(t, Sleep(ctx, time.Minute), ends)
		assert.Equal(t, time.Minute+time.Second, time.Since(begin))
		require.ErrorIs(t, Sleep(ctx, 0), ends)
	})
}
