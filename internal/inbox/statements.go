package inbox

import (
	"cmp"
	"strconv"
	"strings"
)

// statements are those of one table, in the SQL of PostgreSQL.
type statements struct{ insert, store, read, sweep, look, create string }

// sliceBlocks is how many blocks of the table, of 8 kB by default, one deletion looks at: up to 2,500 rows, which take
// 10 ms. The blocks are next to each other, so no index is needed, and the size of the table does not matter.
const sliceBlocks = 16

func statementsOf(table string) statements {
	of := func(text string) string { return strings.ReplaceAll(text, "TABLE_NAME", table) }
	blocks := strconv.Itoa(sliceBlocks)
	const row = " WHERE consumer = $1 AND message_id = $2 AND redrive = $3"
	return statements{
		insert: of("INSERT INTO TABLE_NAME (consumer, message_id, redrive) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"),
		store:  of("UPDATE TABLE_NAME SET produced = $4" + row),
		read:   of("SELECT produced FROM TABLE_NAME" + row),
		// Of all slices, the one with this number. Instances do not wait for each other's deletions.
		sweep: of("WITH size AS (SELECT pg_relation_size('TABLE_NAME') / current_setting('block_size')::bigint / " +
			blocks + " + 1 AS slices), " +
			"slice AS (SELECT $2::bigint % slices * " + blocks + " AS first FROM size), " +
			"gone AS (DELETE FROM TABLE_NAME WHERE ctid = ANY (ARRAY(SELECT ctid FROM TABLE_NAME " +
			"WHERE ctid >= format('(%s,0)', (SELECT first FROM slice))::tid " +
			"AND ctid < format('(%s,0)', (SELECT first + " + blocks + " FROM slice))::tid " +
			"AND handled_at < now() - make_interval(secs => $1) FOR UPDATE SKIP LOCKED))) " +
			"SELECT slices FROM size"),
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
