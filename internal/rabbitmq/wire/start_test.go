package wire

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

var errBusy = &amqp091.Error{Code: amqp091.InternalError, Reason: "INTERNAL_ERROR - {error,cluster_not_formed}"}

// The first declaration is tried again where the broker is at fault, for 30 s. What is wrong with the app is its error
// at once.
func TestWhatIsTriedAgainAtTheStart(t *testing.T) {
	declare := func(err error) error { return fmt.Errorf("topic %q: declare: %w", "orders", err) }
	refused := func(code int) error { return declare(&amqp091.Error{Code: code}) }
	lost := fmt.Errorf("%w: dial", publish.ErrNotConnected)
	for name, row := range map[string]struct {
		errs  []error // of the tries; the last one is that of all further tries, nil: none
		tries int     // 0: until 30 s are over
	}{
		"a busy node":                           {[]error{declare(errBusy), declare(errBusy), nil}, 3},
		"and the connection is lost":            {[]error{declare(errBusy), lost, lost, nil}, 4},
		"a neighbour has lost it":               {[]error{declare(amqp091.ErrClosed), nil}, 2},
		"no answer in time":                     {[]error{declare(os.ErrDeadlineExceeded), nil}, 2},
		"a node that starts no quorum queue":    {[]error{declare(errBusy)}, 0},
		"an argument that differs":              {[]error{refused(amqp091.PreconditionFailed)}, 1},
		"a permission":                          {[]error{refused(amqp091.AccessRefused)}, 1},
		"a virtual host":                        {[]error{refused(amqp091.NotAllowed)}, 1},
		"a fault of the configuration":          {[]error{errors.New("AMQP.Queue.GenerateName is nil")}, 1},
		"no connection":                         {[]error{lost}, 1},
		"a neighbour's is lost, and it is back": {[]error{fmt.Errorf("%w: %w", lost, amqp091.ErrClosed), lost, nil}, 3},
		"then an argument that differs":         {[]error{declare(errBusy), refused(amqp091.PreconditionFailed)}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, tries, health, log := time.Now(), 0, []error{}, watermill.NewCaptureLogger()
				err := AtStart(t.Context(), Config{}.Pause(), log, func(context.Context) error {
					err := row.errs[min(tries, len(row.errs)-1)]
					tries++
					return err
				}, func(err error) { health = append(health, err) })
				last := row.errs[len(row.errs)-1]
				if row.tries > 0 {
					assert.Equal(t, last, err)
					assert.Equal(t, row.tries, tries)
				} else {
					require.ErrorIs(t, err, errBusy)
					for _, text := range []string{
						"tried for 30s", "rabbit_fifo_dlx_sup", "restart the node (docs/limits.md#a-node-that-forwards-nothing-any-more)",
					} {
						assert.ErrorContains(t, err, text)
					}
					assert.Greater(t, time.Since(began), startTimeout-ReconnectMax)
					assert.LessOrEqual(t, time.Since(began), startTimeout)
					assert.Less(t, tries, 25, "with back-off")
				}
				assert.Len(t, health, tries-1, "each failure is in Health")
				assert.Len(t, log.Captured()[watermill.ErrorLogLevel], min(1, tries-1), "one line")
			})
		})
	}
}

// Instances that start together do not try together.
func TestTriesAtTheStartAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second := map[time.Duration]int{}
		for range 20 {
			began, tries := time.Now(), 0
			require.NoError(t, AtStart(t.Context(), Config{}.Pause(), watermill.NopLogger{}, func(context.Context) error {
				if tries++; tries < 3 {
					return errBusy
				}
				return nil
			}, func(error) {}))
			second[time.Since(began)]++
		}
		assert.Greater(t, len(second), 10)
	})
}

func TestTheStartEndsWithTheSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errClosed) })
		began := time.Now()
		busy := func(context.Context) error { return errBusy }
		err := AtStart(ctx, Config{}.Pause(), watermill.NopLogger{}, busy, func(error) {})
		assert.ErrorIs(t, err, errClosed)
		assert.Equal(t, time.Second, time.Since(began))
	})
}

// A try that does not end is given up, in the words of the app, and with the error of the try before it.
func TestTheStartDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := func(ctx context.Context) error {
			<-ctx.Done()
			return fmt.Errorf("declare: %w: %w", context.Cause(ctx), amqp091.ErrClosed)
		}
		began, log := time.Now(), watermill.NewCaptureLogger()
		err := AtStart(t.Context(), Config{}.Pause(), log, silent, func(error) {})
		assert.ErrorContains(t, err, "declare: the broker has not finished this within 5m0s")
		assert.Equal(t, tryTimeout, time.Since(began))
		assert.Empty(t, log.Captured()[watermill.ErrorLogLevel], "it does not try again")

		tries := 0
		err = AtStart(t.Context(), Config{}.Pause(), log, func(ctx context.Context) error {
			if tries++; tries == 1 {
				return errBusy
			}
			return silent(ctx)
		}, func(error) {})
		for _, text := range []string{"has not finished this", "cluster_not_formed", "restart the node"} {
			assert.ErrorContains(t, err, text)
		}
		assert.ErrorIs(t, err, errBusy)
	})
}

// A broker that declares many queues, each of them slowly, is not given up. Its answer is returned however late it is.
func TestASlowStartIsNotGivenUp(t *testing.T) {
	for name, want := range map[string]error{
		"declared": nil, "refused": &amqp091.Error{Code: amqp091.PreconditionFailed}, "busy": errBusy,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := watermill.NewCaptureLogger()
				err := AtStart(t.Context(), Config{}.Pause(), log, func(ctx context.Context) error {
					for range 257 { // as many as Order.Partitions allows, and the work queue
						time.Sleep(time.Second)
						if ctx.Err() != nil {
							return context.Cause(ctx)
						}
					}
					return want
				}, func(error) {})
				assert.ErrorIs(t, err, want)
				assert.Empty(t, log.Captured()[watermill.ErrorLogLevel], "it does not try again")
			})
		})
	}
}

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
