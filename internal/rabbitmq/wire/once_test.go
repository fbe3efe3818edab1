package wire

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAThingIsDoneOnceOnAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Once[string]
		calls := 0
		do := func(connection uint64, key string, lostAt time.Time, err error) error {
			return o.Do(t.Context(), connection, key, lostAt, func() error { calls++; return err })
		}
		failed := errors.New("failed")
		require.ErrorIs(t, do(1, "queue", time.Time{}, failed), failed)
		assert.Zero(t, o.Began(1, "queue"))
		began := time.Now()
		require.NoError(t, do(1, "queue", time.Time{}, nil))
		require.NoError(t, do(1, "queue", time.Time{}, failed))
		assert.Equal(t, 2, calls, "an error is not remembered")
		assert.Equal(t, began, o.Began(1, "queue"))
		assert.Zero(t, o.Began(2, "queue"))

		time.Sleep(time.Second)
		lostAt := time.Now()
		time.Sleep(time.Second)
		require.NoError(t, do(1, "queue", lostAt, nil))
		require.NoError(t, do(1, "queue", lostAt, failed))
		assert.Equal(t, 3, calls, "once since it may be gone")
		require.ErrorIs(t, do(1, "queue", time.Now(), failed), failed)
		assert.Zero(t, o.Began(1, "queue"), "it is gone")

		require.NoError(t, do(1, "queue", time.Time{}, nil))
		require.NoError(t, do(1, "other", time.Time{}, nil))
		require.NoError(t, do(2, "queue", time.Time{}, nil))
		assert.Equal(t, 7, calls, "each thing on each connection")
		require.ErrorIs(t, do(1, "queue", time.Time{}, nil), amqp091.ErrClosed)
		assert.Equal(t, 7, calls)
	})
}

func TestCallersOfTheSameShareACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Once[string]
		release, calls := make(chan struct{}), 0
		ends, failed := errors.New("ends"), errors.New("failed")
		hangs := func() error { calls++; <-release; return failed }
		results := make(chan error, 4)
		do := func(ctx context.Context, lostAt time.Time) {
			go func() { results <- o.Do(ctx, 1, "queue", lostAt, hangs) }()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		do(ctx, time.Time{})
		cancel(ends)
		require.ErrorIs(t, <-results, ends, "its caller does not wait any more")
		do(t.Context(), time.Time{})
		assert.Equal(t, 1, calls, "the next one joins it")
		time.Sleep(time.Second)
		do(t.Context(), time.Now()) // what the call has done may be gone
		assert.Equal(t, 1, calls, "it waits, too")
		close(release)
		require.ErrorIs(t, <-results, failed)
		require.ErrorIs(t, <-results, failed)
		assert.Equal(t, 2, calls, "and calls after it")
		require.ErrorIs(t, o.Do(t.Context(), 1, "queue", time.Time{}, func() error { runtime.Goexit(); return nil }), errExited)
	})
}
