package inflight_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/inflight"
)

// aLock is renewed by a function.
type aLock func() error

func (l aLock) Renew(context.Context) error { return l() }
func (aLock) Release(context.Context) error { return nil }

// A renewal whose answer is lost does not end the lock, whatever the error is. The next one is answered.
func TestALockOutlivesALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		held, release := inflight.Hold(t.Context(), lease, aLock(func() error {
			if calls++; calls%2 == 1 {
				return errors.New("connection reset by peer")
			}
			return nil
		}))
		time.Sleep(5 * lease)
		synctest.Wait()
		assert.NoError(t, held.Err())
		assert.Greater(t, calls, 20)
		release()
		assert.Error(t, held.Err())
	})
}

// A lock that another process has is lost at once.
func TestALockThatIsTakenIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held, release := inflight.Hold(t.Context(), lease, aLock(func() error { return inflight.ErrTaken }))
		defer release()
		time.Sleep(lease/5 + time.Millisecond)
		synctest.Wait()
		assert.ErrorIs(t, context.Cause(held), inflight.ErrTaken)
	})
}

// A lock is lost before its lease ends on a server that does not answer, also while a renewal waits.
func TestALockIsLostBeforeItsLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		held, release := inflight.Hold(t.Context(), lease, aLock(func() error {
			time.Sleep(2 * lease)
			return nil
		}))
		<-held.Done()
		assert.ErrorContains(t, context.Cause(held), "has not answered within the lease")
		assert.Less(t, time.Since(began), lease)
		release()
	})
}
