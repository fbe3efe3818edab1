package postgresretry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/pooler"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
)

var _ operate.Looker = (*reader)(nil)

// Keys implements operate.Looker. It does not read the table of the messages, which may be large.
func (r *reader) Keys(ctx context.Context) (keys []string, err error) {
	if err := r.check(ctx); err != nil {
		return nil, err
	}
	there, err := exists(ctx, r.db, r.table.handlers())
	if err != nil || !there {
		return nil, err
	}
	unknown := r.names.Dead(relaytopic.Unknown)
	rows, err := r.db.QueryContext(ctx, `SELECT topic FROM `+r.table.handlers()+` UNION ALL
		SELECT $1::text WHERE EXISTS (SELECT FROM `+r.table.name+` WHERE topic = $1::text AND due = `+never+`)`, unknown)
	err = each(rows, err, func(rows *sql.Rows) error {
		var topic string
		err := rows.Scan(&topic)
		if key, is := strings.CutPrefix(topic, r.names.Return("")); is {
			keys = append(keys, key)
		} else if topic == unknown {
			keys = append(keys, relaytopic.Unknown)
		}
		return err
	})
	slices.Sort(keys)
	return keys, err
}

// waitingQuery reads the whole table. A row that was taken and is due in the future has a lease.
const waitingQuery = `SELECT topic, count(*) FILTER (WHERE dead), count(*) FILTER (WHERE leased),
		count(*) FILTER (WHERE NOT dead AND NOT leased),
		count(*) FILTER (WHERE due <= statement_timestamp()),
		count(*) FILTER (WHERE due < statement_timestamp() - $1::bigint * interval '1 microsecond'),
		(extract(epoch FROM greatest(min(due) FILTER (WHERE NOT dead AND NOT leased), to_timestamp(0))) * 1000)::bigint
	FROM (SELECT topic, due, due = ` + never + ` AS dead,
			due < ` + never + ` AND takes > 0 AND due > statement_timestamp() AS leased
		FROM %s) rows GROUP BY topic
	UNION ALL SELECT topic, 0, 0, 0, 0, 0, 0 FROM %s`

// Waiting implements operate.Looker. A handler that waits for messages has no connection, so consumers are not known.
func (r *reader) Waiting(ctx context.Context) ([]operate.Waiting, error) {
	if err := r.check(ctx); err != nil {
		return nil, err
	}
	there, err := exists(ctx, r.db, r.table.name)
	if err != nil || !there {
		return nil, err
	}
	rows, err := r.db.QueryContext(ctx, fmt.Sprintf(waitingQuery, r.table.name, r.table.handlers()),
		operate.OverdueAfter.Microseconds())
	byKey := map[string]*operate.Waiting{}
	err = each(rows, err, func(rows *sql.Rows) error {
		var topic string
		var one operate.Waiting
		var due int64
		err := rows.Scan(&topic, &one.Dead, &one.InFlight, &one.Retries, &one.Due, &one.Overdue, &due)
		key, dead := strings.CutPrefix(topic, r.names.Dead(""))
		key, waits := strings.CutPrefix(key, r.names.Return(""))
		if err != nil || !dead && !waits {
			return err
		}
		w := byKey[key]
		if w == nil {
			w = &operate.Waiting{Name: key}
			byKey[key] = w
		}
		w.Dead, w.InFlight, w.Retries = w.Dead+one.Dead, w.InFlight+one.InFlight, w.Retries+one.Retries
		w.Due, w.Overdue = w.Due+one.Due, w.Overdue+one.Overdue
		if due != 0 {
			w.NextDue = time.UnixMilli(due).UTC()
		}
		return nil
	})
	var all []operate.Waiting
	for _, w := range byKey {
		all = append(all, *w)
	}
	slices.SortFunc(all, func(a, b operate.Waiting) int { return strings.Compare(a.Name, b.Name) })
	return all, err
}

// settingsQuery reads what the rules look at. Settings of times are in milliseconds.
const settingsQuery = `SELECT current_setting('server_version'), current_setting('server_version_num')::int,
	current_setting('fsync'), current_setting('synchronous_commit'),
	(SELECT setting::bigint FROM pg_settings WHERE name = 'statement_timeout'),
	(SELECT setting::bigint FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'),
	(extract(epoch FROM clock_timestamp()) * 1000)::bigint`

const (
	longTransaction = 5 * time.Minute
	shortTimeout    = time.Minute // an inbox keeps a transaction while a handler runs
)

// serverSettings are what settingsQuery reads.
type serverSettings struct {
	version, fsync, commit string
	number                 int
	statement, idle, now   int64
}

// check applies the rules to settings that were read after begun.
func (s serverSettings) check(checked *operate.Checked, begun time.Time) {
	checked.Server = "PostgreSQL " + s.version
	found := func(rule, what string, do ...string) { checked.Found(rule, "PostgreSQL", what, do...) }
	if s.number < 130000 {
		found("version", "its version is "+s.version, "upgrade to 13 or later")
	}
	if s.fsync == "off" || s.commit == "off" {
		found("persistence", fmt.Sprintf("fsync is %s and synchronous_commit is %s: a power cut loses what was published "+
			"last", s.fsync, s.commit), "set both to on, for the app's role at least")
	}
	for name, milliseconds := range map[string]int64{
		"statement_timeout": s.statement, "idle_in_transaction_session_timeout": s.idle,
	} {
		if timeout := time.Duration(milliseconds) * time.Millisecond; timeout > 0 && timeout < shortTimeout {
			found("timeouts", fmt.Sprintf("%s is %v: it ends transactions of an inbox whose handler takes longer", name,
				timeout), "raise it for the app's role: ALTER ROLE app SET "+name+" = '5min'")
		}
	}
	checked.Clock("PostgreSQL", begun, time.UnixMilli(s.now))
}

// Check implements operate.Looker.
func (r *reader) Check(ctx context.Context) (checked operate.Checked, err error) {
	var s serverSettings
	begun := time.Now()
	if err := r.db.QueryRowContext(ctx, settingsQuery).Scan(&s.version, &s.number, &s.fsync, &s.commit, &s.statement,
		&s.idle, &s.now); err != nil {
		return checked, err
	}
	s.check(&checked, begun)
	if err := pooler.CheckDB(ctx, r.db); errors.Is(err, pooler.ErrUnfit) {
		checked.Found("pooler", "PostgreSQL", err.Error(), "docs/other-pubsubs.md#pgbouncer")
		return checked, nil
	}
	missing, err := r.table.missing(ctx, r.db)
	if err != nil {
		return checked, err
	}
	if len(missing) > 0 {
		checked.Found("schema", strings.Join(missing, ", "), "missing, or in a schema that the role may not use",
			"start an app, or execute what postgresretry.Schema returns")
		return checked, nil
	}
	if err := r.table.check(ctx, r.db); err != nil {
		checked.Found("grants", r.table.name, err.Error(), "docs/other-pubsubs.md#rights-on-postgresql")
		return checked, nil
	}
	return checked, errors.Join(r.checkTable(ctx, &checked), r.checkTransactions(ctx, &checked),
		r.checkOffsets(ctx, &checked))
}

// checkTable looks for rows that no vacuum has removed.
func (r *reader) checkTable(ctx context.Context, checked *operate.Checked) error {
	var live, dead int64
	err := r.db.QueryRowContext(ctx, `SELECT n_live_tup, n_dead_tup FROM pg_stat_all_tables
		WHERE relid = to_regclass($1::text)`, r.table.name).Scan(&live, &dead)
	deadRows(checked, r.table.name, live, dead)
	return err
}

func deadRows(checked *operate.Checked, table string, live, dead int64) {
	if dead > 10_000+live {
		checked.Found("dead-rows", table, fmt.Sprintf("it has %d dead rows beside %d live ones, which each read skips",
			dead, live), "end long transactions, then VACUUM "+table+"; see that autovacuum is on")
	}
}

// checkTransactions looks for transactions that keep rows and the app's topics back. Those of other roles are shown
// without their times where this one may not see them.
func (r *reader) checkTransactions(ctx context.Context, checked *operate.Checked) error {
	rows, err := r.db.QueryContext(ctx, `SELECT pid, COALESCE(state, ''),
			extract(epoch FROM clock_timestamp() - xact_start)::bigint
		FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
			AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
		ORDER BY xact_start LIMIT 5`)
	return each(rows, err, func(rows *sql.Rows) error {
		var pid, seconds int64
		var state string
		err := rows.Scan(&pid, &state, &seconds)
		openTransaction(checked, pid, state, time.Duration(seconds)*time.Second)
		return err
	})
}

func openTransaction(checked *operate.Checked, pid int64, state string, age time.Duration) {
	if age > longTransaction {
		checked.Found("long-transaction", fmt.Sprintf("pid %d", pid), fmt.Sprintf("its transaction is open for %v (%s): "+
			"messages of the app's topics that were published since may wait for it, and no vacuum removes rows", age, state),
			fmt.Sprintf("end it: SELECT pg_terminate_backend(%d)", pid))
	}
}

var offsetsTable = regexp.MustCompile(`^watermill_offsets_(.+)$`)

// checkOffsets looks for offsets that are ahead of the server, as after a restore on another one.
func (r *reader) checkOffsets(ctx context.Context, checked *operate.Checked) error {
	var topics []string
	rows, err := r.db.QueryContext(ctx, `SELECT relname FROM pg_class WHERE relkind = 'r' AND pg_table_is_visible(oid)
		AND starts_with(relname, 'watermill_offsets_') AND has_table_privilege(oid, 'SELECT') ORDER BY relname`)
	err = each(rows, err, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		if match := offsetsTable.FindStringSubmatch(name); match != nil && checkTopic(match[1], true) == nil {
			topics = append(topics, match[1])
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, topic := range topics {
		a := &appTopic{messages: appSchema.MessagesTable(topic), offsets: appOffsets.MessagesOffsetsTable(topic)}
		var ahead bool
		err := r.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM `+a.offsets+` o
			WHERE o.last_processed_transaction_id >= `+serverNext+`)`).Scan(&ahead)
		if err != nil {
			return err
		}
		if ahead {
			checked.Found("transaction-id", "topic "+topic, "last_processed_transaction_id is ahead of the server, as after a "+
				"restore on another one: what is published until the server has got there is not read",
				"stop its apps, then execute: "+a.mend(), "docs/backup.md")
		}
	}
	return nil
}
