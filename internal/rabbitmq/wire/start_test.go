package wire

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	t.Parallel()
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
			t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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

// What the broker never answers is given up, in the words of the app.
func TestTheStartDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := AtStart(t.Context(), Config{}.Pause(), watermill.NopLogger{}, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}, func(error) {})
		assert.EqualError(t, err, "tried for 1m0s: the broker has not answered for 1m0s")
		assert.Equal(t, time.Minute, time.Since(began))
	})
}
