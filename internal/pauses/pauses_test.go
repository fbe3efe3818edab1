package pauses

import (
	"context"
	"errors"
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
