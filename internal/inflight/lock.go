package inflight

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tieredretry/watermill-retry/internal/pauses"
)

// ErrTaken is returned by Lock.Renew where another call has the lock.
var ErrTaken = errors.New("another call has the lock")

var errNoAnswer = errors.New("the server has not answered within the lease")

// Lock is a lock on a server that ends with its lease.
type Lock interface {
	// Renew begins the lease anew. Where the server has not answered, it may have renewed the lock: an error other than
	// ErrTaken is no loss of it.
	Renew(context.Context) error

	// Release gives the lock back. Its error is of no use: the lease ends by itself.
	Release(context.Context) error
}

// Hold renews a lock several times in each lease, until the function that it returns is called. The context that it
// returns ends when the lock is lost: at ErrTaken, or when a lease without an answer is nearly over.
func Hold(ctx context.Context, lease time.Duration, lock Lock) (context.Context, func()) {
	pause := lease / 5
	held, lose := context.WithCancelCause(ctx)
	lost := func(err error) { lose(fmt.Errorf("the lock of the dead letters is lost: %w", err)) }
	end := time.AfterFunc(lease-pause, func() { lost(errNoAnswer) })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer end.Stop()
		for {
			if pauses.Sleep(held, pause) != nil {
				return
			}
			began := time.Now()
			within, cancel := context.WithTimeout(held, pause)
			err := lock.Renew(within)
			cancel()
			if errors.Is(err, ErrTaken) {
				lost(err)
			} else if err == nil && end.Stop() {
				end.Reset(lease - pause - time.Since(began))
			}
		}
	}()
	return held, func() {
		lose(nil)
		<-ended
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), pause)
		defer cancel()
		_ = lock.Release(within)
	}
}
