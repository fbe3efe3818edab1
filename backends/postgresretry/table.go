package postgresretry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
)

// never is the due time of dead letters. The index of the messages that wait does not have them.
const never = "'infinity'"

// schema has the statements that make the tables. %[1]s is the quoted name of the table, %[2]s the start of the quoted
// names beside it, without the closing quote, and %[3]s the same without a schema.
const schema = `CREATE TABLE IF NOT EXISTS %[1]s (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic    text NOT NULL COLLATE "C",
    due      timestamptz NOT NULL, -- 'infinity': a dead letter
    takes    integer NOT NULL DEFAULT 0,
    uuid     text NOT NULL,
    payload  bytea NOT NULL,
    metadata json NOT NULL
) WITH (vacuum_truncate = false, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX IF NOT EXISTS %[3]s_due" ON %[1]s (topic, due) WHERE due < 'infinity';
CREATE INDEX IF NOT EXISTS %[3]s_dead" ON %[1]s (topic, id) WHERE due = 'infinity';
CREATE TABLE IF NOT EXISTS %[2]s_handlers" (
    topic text PRIMARY KEY COLLATE "C" -- a return topic that a handler has subscribed to
);
`

// table is the name of a table, quoted.
type table struct {
	name  string // with the schema
	start string // name without its last quote
	local string // start without the schema
}

func newTable(name string) table {
	schema, local, found := strings.Cut(name, ".")
	if !found {
		schema, local = "", name
	}
	t := table{local: `"` + local}
	t.start = t.local
	if found {
		t.start = `"` + schema + `".` + t.local
	}
	t.name = t.start + `"`
	return t
}

func (t table) handlers() string { return t.start + `_handlers"` }

// Schema returns the statements that make the tables of Config.Table, "" being its default. Connect executes them where
// a table does not exist. Where the app may not create tables, execute them before; the app then needs SELECT, INSERT,
// UPDATE and DELETE on both tables.
func Schema(name string) string {
	c := Config{Table: name}
	c.setDefaults()
	t := newTable(c.Table)
	return fmt.Sprintf(schema, t.name, t.start, t.local)
}

// exists reports whether a table can be seen.
func exists(ctx context.Context, db *sql.DB, quoted string) (exists bool, err error) {
	err = db.QueryRowContext(ctx, `SELECT to_regclass($1::text) IS NOT NULL`, quoted).Scan(&exists)
	return exists, err
}

// make makes the tables where one of them does not exist, and checks that they fit. The lock is for processes that
// start at the same time: two sessions that create the same table at once fail.
func (t table) make(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	first, err := exists(ctx, db, t.name)
	second, secondErr := exists(ctx, db, t.handlers())
	if err := errors.Join(err, secondErr); err != nil {
		return fmt.Errorf("cannot look for the table %s: %w", t.name, err)
	}
	if !first || !second {
		if err := createLocked(ctx, db, fmt.Sprintf(schema, t.name, t.start, t.local)); err != nil {
			return fmt.Errorf("cannot create the table %s: execute postgresretry.Schema as a user who may: %w", t.name, err)
		}
	}
	for _, query := range []string{
		`SELECT id, topic, due, takes, uuid, payload, metadata FROM ` + t.name + ` WHERE false`,
		`SELECT topic FROM ` + t.handlers() + ` WHERE false`,
	} {
		if _, err := db.ExecContext(ctx, query); err != nil {
			return fmt.Errorf("the table %s is not that of this package, or must not be read: set another Table: %w",
				t.name, err)
		}
	}
	return nil
}

// createLocked executes statements in a transaction. They have no semicolons but those at their ends.
func createLocked(ctx context.Context, db *sql.DB, statements string) (err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreDone(tx.Rollback()))
		}
	}()
	const lock = `SELECT pg_advisory_xact_lock(hashtextextended('watermill-retry tables', 0))`
	for _, statement := range append([]string{lock}, strings.Split(strings.TrimSpace(statements), ";")...) {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}
