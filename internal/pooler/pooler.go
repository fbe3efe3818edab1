// Package pooler refuses a driver whose statements do not survive a pooler between it and PostgreSQL.
package pooler

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/internal/sqlstate"
)

// ErrUnfit is returned where parts of a statement can reach different sessions.
var ErrUnfit = errors.New("the database is behind a pooler that gives each transaction another session (as " +
	"PgBouncer's pool_mode = transaction does), and this driver needs more than one round trip for a statement. Let it " +
	"need one: default_query_exec_mode=cache_describe with pgx, binary_parameters=yes with pq. Or let the pooler keep " +
	"sessions (pool_mode = session), or prepared statements (max_prepared_statements, from PgBouncer 1.21 on)")

// Session is one connection of a client.
type Session interface {
	// Scan executes a statement, and scans its only row.
	Scan(ctx context.Context, query string, arg string, into ...any) error
	Close()
}

// look returns the session of the server; whether the driver has sent the statement in one round trip; and the name of
// the prepared statement, if the driver has used a name. The text 'now' is read when a statement is parsed, and now()
// is when the transaction began that executes it: without a transaction around, each round trip is one.
const (
	marker = "watermill-retry looks for a pooler"
	look   = `SELECT /* ` + marker + ` */ pg_backend_pid(), 'now'::timestamptz = now(), COALESCE((
		SELECT max(name) FROM pg_prepared_statements WHERE strpos(statement, $1::text) > 0), '')`
)

// rounds is how often each of two sessions is looked at.
const rounds = 4

// timeout bounds a check, which must leave time for what comes next: the app may use the connections that it waits for.
const timeout = 5 * time.Second

// Check returns ErrUnfit where a pooler is seen and does not fit the driver. It opens two sessions at the same time, or
// one where a second is not allowed. Where it cannot tell, as when the server does not answer, or a session is not free
// within 5 seconds, it returns nil.
func Check(ctx context.Context, single bool, open func(context.Context) (Session, error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var sessions []Session
	var pids []int
	defer func() {
		for _, s := range sessions {
			s.Close()
		}
	}()
	for range rounds {
		for i := range 2 {
			if i == 1 && single {
				continue
			}
			if i == len(sessions) {
				s, err := open(ctx)
				if err != nil {
					return nil
				}
				sessions = append(sessions, s)
			}
			var pid int
			var once bool
			var name string
			switch err := sessions[i].Scan(ctx, look, marker, &pid, &once, &name); {
			case err != nil && slices.Contains(mixed, sqlstate.Of(err)):
				return errors.Join(ErrUnfit, err)
			case err != nil, once, strings.HasPrefix(name, "PGBOUNCER_"): // the pooler keeps the statement, under its own name
				return nil
			case i == len(pids) && slices.Contains(pids, pid), i < len(pids) && pids[i] != pid:
				return ErrUnfit
			case i == len(pids):
				pids = append(pids, pid)
			}
		}
	}
	return nil
}

// mixed are the errors of a session that has other prepared statements than the driver believes.
var mixed = []string{
	"42P05", // it has one of that name
	"26000", // it has none of that name
	"08P01", // it has another one
}

// CheckDB is Check for database/sql.
func CheckDB(ctx context.Context, db *sql.DB) error {
	return Check(ctx, db.Stats().MaxOpenConnections == 1, func(ctx context.Context) (Session, error) {
		conn, err := db.Conn(ctx)
		return session{conn}, err
	})
}

type session struct{ conn *sql.Conn }

func (s session) Scan(ctx context.Context, query, arg string, into ...any) error {
	return s.conn.QueryRowContext(ctx, query, arg).Scan(into...)
}

func (s session) Close() { _ = s.conn.Close() }
