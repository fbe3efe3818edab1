package postgresretry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tieredretry/watermill-retry/letters"
)

// lockInterval is how often the session of a lock is checked, and how long it may take to answer.
const lockInterval = 5 * time.Second

// lock lets one call at a time change a topic. It is an advisory lock of a session of its own, which ends with the
// session. It takes no transaction, because an open one keeps deleted rows from being removed.
func (r *reader) lock(ctx context.Context, topic string) (context.Context, func(), error) {
	session, err := r.db.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	const key = `(hashtextextended('watermill-retry dead letters ' || $1::text, 0))`
	name := r.table.name + " " + topic
	var locked bool
	err = session.QueryRowContext(ctx, `SELECT pg_try_advisory_lock`+key, name).Scan(&locked)
	if err != nil || !locked {
		if err == nil {
			err = fmt.Errorf("topic %q: %w", topic, letters.ErrBusy)
		}
		return nil, nil, errors.Join(err, session.Close())
	}
	held, lose := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(lockInterval)
		defer tick.Stop()
		for {
			select {
			case <-held.Done():
				return
			case <-tick.C:
			}
			within, cancel := context.WithTimeout(held, lockInterval)
			_, err := session.ExecContext(within, `SELECT 1`)
			cancel()
			if err != nil && held.Err() == nil {
				lose(fmt.Errorf("the lock of the dead letters is lost: %w", err))
			}
		}
	}()
	return held, func() {
		lose(nil)
		<-ended
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockInterval)
		defer cancel()
		if _, err := session.ExecContext(within, `SELECT pg_advisory_unlock`+key, name); err != nil {
			_ = session.Raw(func(any) error { return errDropped }) // the pool must not keep a session with the lock
		}
		_ = session.Close()
	}, nil
}
