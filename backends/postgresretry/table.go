package postgresretry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// never is the due time of dead letters. The index of the messages that wait does not have them.
const never = "'infinity'"

// schema has the statements that make the tables and functions, with blank lines between them. %[1]s is the quoted name
// of the table, %[2]s the start of the quoted names beside it, without the closing quote, and %[3]s the same without a
// schema.
//
// A function needs one round trip for its settings and its statement, and no session keeps the settings. The table can
// be empty when a statement is planned, and have a million rows a second later: without an index each execution would
// then read all of them. With the indexes one plan is good for all executions, and planning would take as long as they
// do. What a power cut undoes comes again, so that no transaction waits for the disk.
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

-- Topics, how many messages of each, their floors in microseconds since 1970 (0: none), the lease in microseconds. Rows
-- of other programs can be due at any time.
CREATE OR REPLACE FUNCTION %[2]s_take"(text[], integer[], bigint[], bigint)
RETURNS TABLE (id bigint, takes integer, topic text, uuid text, payload bytea, metadata text, number bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN QUERY WITH want AS MATERIALIZED (
        SELECT w.* FROM unnest($1, $2, $3) AS w(topic, n, floor)),
    picked AS MATERIALIZED (
        SELECT p.id, p.due FROM want CROSS JOIN LATERAL (
            SELECT t.id, t.due FROM %[1]s t
            WHERE t.topic = want.topic
                AND t.due >= CASE WHEN want.floor = 0 THEN '-infinity' ELSE to_timestamp(want.floor / 1e6) END
                AND t.due <= statement_timestamp() AND t.due < 'infinity'
            ORDER BY t.due LIMIT want.n FOR UPDATE SKIP LOCKED) p),
    taken AS (
        UPDATE %[1]s t SET due = clock_timestamp() + $4 * interval '1 microsecond', takes = t.takes + 1
        WHERE t.id = ANY(ARRAY(SELECT picked.id FROM picked))
        RETURNING t.id, t.takes, t.topic, t.uuid, t.payload, t.metadata)
    SELECT taken.id, taken.takes, taken.topic, taken.uuid, taken.payload, taken.metadata::text,
        (extract(epoch FROM greatest(picked.due, to_timestamp(0))) * 1000000)::bigint
    FROM taken JOIN picked ON picked.id = taken.id
    UNION ALL
    SELECT 0, 0, want.topic, '', '', '', COALESCE((
        SELECT (extract(epoch FROM least(t.due - statement_timestamp(), '100 years')) * 1000000)::bigint FROM %[1]s t
        WHERE t.topic = want.topic AND t.due > statement_timestamp() AND t.due < 'infinity'
        ORDER BY t.due LIMIT 1), -1)
    FROM want WHERE NOT EXISTS (SELECT FROM taken WHERE taken.topic = want.topic);
END $$;

-- An id can be that of another row: a crash of the server can undo a move, and its sequence values with it.
CREATE OR REPLACE FUNCTION %[2]s_ack"(bigint[], text[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM %[1]s t USING unnest($1, $2) AS a(id, uuid) WHERE t.id = a.id AND t.uuid = a.uuid;
END $$;
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

// The functions, with the types of their arguments.
func (t table) take() string { return t.start + `_take"(text[], integer[], bigint[], bigint)` }
func (t table) ack() string  { return t.start + `_ack"(bigint[], text[])` }

// Schema returns the statements that make the tables and functions of Config.Table, "" being its default. Connect
// executes them where one does not exist. Where the app may not create them, execute the statements before, and grant
// the app's role the rights that docs/other-pubsubs.md lists.
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

// missing returns the tables and functions that cannot be seen.
func (t table) missing(ctx context.Context, db *sql.DB) (missing []string, err error) {
	objects := [...]string{t.name, t.handlers(), t.take(), t.ack()}
	kinds := [len(objects)]string{"table", "table", "function", "function"}
	var found [len(objects)]bool
	err = db.QueryRowContext(ctx, `SELECT to_regclass($1::text) IS NOT NULL, to_regclass($2::text) IS NOT NULL,
			to_regprocedure($3::text) IS NOT NULL, to_regprocedure($4::text) IS NOT NULL`,
		objects[0], objects[1], objects[2], objects[3]).Scan(&found[0], &found[1], &found[2], &found[3])
	for i, object := range objects {
		if !found[i] {
			missing = append(missing, kinds[i]+" "+object)
		}
	}
	return missing, err
}

// make makes the tables and functions where one of them does not exist, and checks that the tables fit. The lock is for
// processes that start at the same time: two sessions that create the same table at once fail.
func (t table) make(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	missing, err := t.missing(ctx, db)
	if err != nil {
		return fmt.Errorf("cannot look for the table %s: %w", t.name, err)
	}
	if !slices.ContainsFunc(missing, func(object string) bool { return strings.HasPrefix(object, "table ") }) {
		if err := t.check(ctx, db); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		statements := strings.Split(fmt.Sprintf(schema, t.name, t.start, t.local), "\n\n")
		if err := createLocked(ctx, db, statements...); err != nil {
			return fmt.Errorf("cannot create what is missing, %s: execute postgresretry.Schema as a user who may, or, "+
				"where they exist, grant USAGE on their schema: %w",
				strings.Join(missing, ", "), err)
		}
	}
	return t.check(ctx, db)
}

// check checks that the tables fit, and that they and the functions may be used, as far as they exist.
func (t table) check(ctx context.Context, db *sql.DB) error {
	err := checkRights(ctx, db, []right{
		{"TABLE", t.name, "SELECT"}, {"TABLE", t.name, "INSERT"}, {"TABLE", t.name, "UPDATE"}, {"TABLE", t.name, "DELETE"},
		{"TABLE", t.handlers(), "SELECT"}, {"TABLE", t.handlers(), "INSERT"},
		{"FUNCTION", t.take(), "EXECUTE"}, {"FUNCTION", t.ack(), "EXECUTE"},
	})
	if err != nil {
		return err
	}
	for _, query := range []string{
		`SELECT id, topic, due, takes, uuid, payload, metadata FROM ` + t.name + ` WHERE false`,
		`SELECT topic FROM ` + t.handlers() + ` WHERE false`,
	} {
		if _, err := db.ExecContext(ctx, query); err != nil {
			return fmt.Errorf("the table %s is not that of this package: set another Table: %w",
				t.name, err)
		}
	}
	return nil
}

// createLocked executes statements in a transaction.
func createLocked(ctx context.Context, db *sql.DB, statements ...string) (err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreDone(tx.Rollback()))
		}
	}()
	// A process that is stopped with the lock keeps others from starting for half a minute.
	const lock = `SELECT set_config('idle_in_transaction_session_timeout', '30000', true),
		pg_advisory_xact_lock(hashtextextended('watermill-retry tables', 0))`
	for _, statement := range append([]string{lock}, statements...) {
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
