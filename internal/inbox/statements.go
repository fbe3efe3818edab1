package inbox

import (
	"cmp"
	"strconv"
	"strings"
)

// statements are those of one table, in the SQL of PostgreSQL.
type statements struct{ insert, store, read, mark, sweep, limit, look, create string }

// notEnded is when a message was handled whose handler has committed by itself and has not succeeded. A handler that
// can produce messages has it until they are stored. No other transaction sees it but after such a commit.
const notEnded = "'infinity'::timestamptz"

// sliceBlocks is how many blocks of the table, of 8 kB by default, one deletion looks at: up to 2,500 rows, which take
// 10 ms. The blocks are next to each other, so no index is needed, and the size of the table does not matter.
const sliceBlocks = 16

func statementsOf(table string) statements {
	of := func(text string) string { return strings.ReplaceAll(text, "TABLE_NAME", table) }
	blocks := strconv.Itoa(sliceBlocks)
	const row = " WHERE consumer = $1 AND message_id = $2 AND redrive = $3"
	return statements{
		insert: of("INSERT INTO TABLE_NAME (consumer, message_id, redrive, handled_at) VALUES ($1, $2, $3, " +
			"CASE WHEN $4::boolean THEN " + notEnded + " ELSE now() END) ON CONFLICT DO NOTHING " +
			"RETURNING pg_current_xact_id()::xid::text"),
		store: of("UPDATE TABLE_NAME SET produced = $4, handled_at = now()" + row),
		read:  of("SELECT produced, handled_at <> " + notEnded + " FROM TABLE_NAME" + row),
		// Another delivery can have succeeded by now, where the handler has rolled back.
		mark: of("WITH marked AS (UPDATE TABLE_NAME SET handled_at = " + notEnded + row +
			" AND xmin::text = $4 RETURNING 1) SELECT count(*) FROM marked"),
		// Of all slices, the one with this number. Instances do not wait for each other's deletions.
		sweep: of("WITH size AS (SELECT pg_relation_size('TABLE_NAME') / current_setting('block_size')::bigint / " +
			blocks + " + 1 AS slices), " +
			"slice AS (SELECT $2::bigint % slices * " + blocks + " AS first FROM size), " +
			"gone AS (DELETE FROM TABLE_NAME WHERE ctid = ANY (ARRAY(SELECT ctid FROM TABLE_NAME " +
			"WHERE ctid >= format('(%s,0)', (SELECT first FROM slice))::tid " +
			"AND ctid < format('(%s,0)', (SELECT first + " + blocks + " FROM slice))::tid " +
			"AND handled_at < now() - make_interval(secs => $1) FOR UPDATE SKIP LOCKED))) " +
			"SELECT slices FROM size"),
		// in milliseconds; 0: there is none
		limit: "SELECT COALESCE(min(NULLIF(setting::bigint, 0)), 0) FROM pg_settings " +
			"WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')",
		look: of("SELECT consumer, message_id, redrive, handled_at, produced FROM TABLE_NAME LIMIT 0"),
		// two instances that create a table at the same time would fail
		create: "SELECT pg_advisory_xact_lock(1952543855);\n" + Schema(table),
	}
}

// Schema returns the SQL that makes a table. Empty: the default table.
func Schema(table string) string {
	table = cmp.Or(table, defaultTable)
	return strings.ReplaceAll(schema, "TABLE_NAME", table)
}

const schema = `CREATE TABLE IF NOT EXISTS TABLE_NAME (
	consumer   text NOT NULL,
	message_id text NOT NULL,
	redrive    text NOT NULL,
	handled_at timestamptz NOT NULL DEFAULT now(),
	produced   bytea,
	PRIMARY KEY (consumer, message_id, redrive)
);
`
