package inbox

import (
	"cmp"
	"strconv"
	"strings"
)

// statements are those of one table, in the SQL of PostgreSQL.
type statements struct{ insert, store, read, sweep, look, create string }

// batch is how many rows one deletion deletes at most.
const batch = 1000

func statementsOf(table string) statements {
	of := func(text string) string { return strings.ReplaceAll(text, "TABLE_NAME", table) }
	const row = " WHERE consumer = $1 AND message_id = $2 AND redrive = $3"
	return statements{
		insert: of("INSERT INTO TABLE_NAME (consumer, message_id, redrive) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"),
		store:  of("UPDATE TABLE_NAME SET produced = $4" + row),
		read:   of("SELECT produced FROM TABLE_NAME" + row),
		// instances do not wait for each other's deletions
		sweep: of("DELETE FROM TABLE_NAME WHERE ctid = ANY (ARRAY(SELECT ctid FROM TABLE_NAME " +
			"WHERE handled_at < now() - make_interval(secs => $1) ORDER BY handled_at LIMIT " + strconv.Itoa(batch) + " " +
			"FOR UPDATE SKIP LOCKED))"),
		look: of("SELECT consumer, message_id, redrive, handled_at, produced FROM TABLE_NAME LIMIT 0"),
		// two instances that create a table at the same time would fail
		create: "SELECT pg_advisory_xact_lock(1952543855);\n" + Schema(table),
	}
}

// Schema returns the SQL that makes a table. Empty: the default table.
func Schema(table string) string {
	table = cmp.Or(table, defaultTable)
	index := table[strings.LastIndex(table, ".")+1:] + "_handled_at"
	return strings.NewReplacer("TABLE_NAME", table, "INDEX_NAME", index).Replace(schema)
}

const schema = `CREATE TABLE IF NOT EXISTS TABLE_NAME (
	consumer   text NOT NULL,
	message_id text NOT NULL,
	redrive    text NOT NULL,
	handled_at timestamptz NOT NULL DEFAULT now(),
	produced   bytea,
	PRIMARY KEY (consumer, message_id, redrive)
);
CREATE INDEX IF NOT EXISTS INDEX_NAME ON TABLE_NAME (handled_at);
`
