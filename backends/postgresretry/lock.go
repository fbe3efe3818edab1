package postgresretry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/tieredretry/watermill-retry/letters"
)

const (
	// lockInterval is how often the transaction of a lock is checked, and how long it may take to answer.
	lockInterval = 5 * time.Second

	// lockIdle is when the server ends a lock whose call has lost its host.
	lockIdle = 12 * lockInterval
)

// lock lets one call at a time change a topic. It is an advisory lock of a transaction, which ends with that: the lock
// of a session would stay where a pooler gives the session to another client. The transaction keeps no deleted rows
// from being removed: it is READ COMMITTED, so between its statements it has no snapshot, and it writes nothing.
func (r *reader) lock(ctx context.Context, topic string) (context.Context, func(), error) {
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	tx, err := r.db.BeginTx(lasting, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		end()
		return nil, nil, err
	}
	name := r.table.name + " " + topic
	var locked bool
	var settings int
	err = tx.QueryRowContext(lasting, `SELECT
			pg_try_advisory_xact_lock(hashtextextended('watermill-retry dead letters ' || $1::text, 0)),
			(SELECT count(set_config(name, CASE name WHEN 'transaction_timeout' THEN '0' ELSE $2::text END, true))
				FROM pg_settings WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout'))`,
		name, fmt.Sprint(lockIdle.Milliseconds())).Scan(&locked, &settings)
	if err == nil && !locked {
		err = fmt.Errorf("topic %q: %w: wait until that redrive or discard has ended; the lock of one whose host is lost "+
			"ends %v later", topic, letters.ErrBusy, lockIdle)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		err = errors.Join(err, ignoreDone(tx.Rollback()))
		end()
		return nil, nil, err
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
			_, err := tx.ExecContext(within, `SELECT 1`)
			cancel()
			if err != nil && held.Err() == nil {
				lose(fmt.Errorf("the lock of the dead letters is lost: %w", err))
			}
		}
	}()
	return held, func() {
		lose(nil)
		<-ended
		late := time.AfterFunc(lockInterval, end)
		_ = tx.Rollback()
		late.Stop()
		end()
	}, nil
}
