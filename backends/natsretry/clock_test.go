package natsretry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The clock is never behind that of the server, and does not depend on that of this host.
func TestClockIsThatOfTheServer(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			reads := 0
			c := &clock{read: func(context.Context) (time.Time, error) {
				reads++
				time.Sleep(30 * time.Millisecond)
				at := time.Now().Add(ahead)
				time.Sleep(30 * time.Millisecond)
				return at, nil
			}}
			for range 100 {
				now, err := c.now(t.Context())
				require.NoError(t, err)
				late := now.Sub(time.Now().Add(ahead))
				assert.GreaterOrEqual(t, late, time.Duration(0), "early")
				assert.LessOrEqual(t, late, 30*time.Millisecond+2*freshFor/drift)
				time.Sleep(time.Second)
				synctest.Wait()
			}
			assert.LessOrEqual(t, reads, 3*12, "it is read again and again")
		})
	}
}

// A server that does not answer is not waited for while the last reading can be used, and then its error is returned.
func TestClockWithoutItsServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("the server is down")
		var fails error
		c := &clock{read: func(context.Context) (time.Time, error) { return time.Now(), fails }}
		_, err := c.now(t.Context())
		require.NoError(t, err)
		fails = down
		time.Sleep(50 * time.Second)
		_, err = c.now(t.Context())
		require.NoError(t, err)
		time.Sleep(20 * time.Second)
		_, err = c.now(t.Context())
		require.ErrorIs(t, err, down)
		fails = nil
		_, err = c.now(t.Context())
		require.NoError(t, err)
	})
}

// The publishers of a process share one reading, and none waits longer than its context.
func TestClockIsReadOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		c := &clock{read: func(ctx context.Context) (time.Time, error) {
			reads++
			<-ctx.Done()
			return time.Time{}, ctx.Err()
		}}
		for range 50 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := c.now(ctx)
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			}()
		}
		time.Sleep(clockTimeout + time.Second)
		synctest.Wait()
		assert.Equal(t, 1, reads)
	})
}
