package conformance

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/tools/server"
)

// are reports whether these messages were handled, each once, and no others.
func (l *ledger) are(ids ...string) bool {
	return slices.Equal(l.handled(), ids) && l.duplicates() == 0
}

// TestPostgresIsRestoredOnAServerWithLowerTransactionIDs: Health and the log say so, with the statement that mends it.
// Each group then goes on behind what it has read.
func TestPostgresIsRestoredOnAServerWithLowerTransactionIDs(t *testing.T) {
	from := startPostgres(t)
	restored, err := servers.PostgreSQL(t.Context())
	require.NoError(t, err)
	t.Cleanup(restored.Stop)
	to := onPostgres{t: t, url: restored.URL}
	to.db = to.open()
	const id = `SELECT pg_current_xact_id()::text::bigint`
	for from.count(id) < to.count(id)+2000 { // the server that is backed up has had more
		from.exec(id)
	}
	config := from.config()
	mailing := from.config()
	mailing.Group = "mailing"
	bills, mails := newLedger(), newLedger()
	app := from.connect(config).bills(bills.failing(0))
	other := from.connect(mailing).bills(mails.failing(0))
	app.publish("1", "2")
	wait.Until(t, func() bool { return mails.are("1", "2") }, "mailing has got all")
	other.stop()
	app.publish("3", "4")
	wait.Until(t, func() bool { return bills.are("1", "2", "3", "4") }, "billing has got all")
	app.stop()

	dumpedUntil := from.count(id)
	dump, err := server.Program(t.Context(), "pg_dump", "postgresql", []string{"postgresql"}, "/usr/lib/postgresql/*/bin")
	require.NoError(t, err)
	dumped, err := exec.CommandContext(t.Context(), dump, "--dbname", from.url).Output()
	require.NoError(t, err)
	restore := exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(dump), "psql"), "--quiet",
		"--set", "ON_ERROR_STOP=1", "--dbname", to.url)
	restore.Stdin = strings.NewReader(string(dumped))
	words, err := restore.CombinedOutput()
	require.NoError(t, err, string(words))

	bills, mails = newLedger(), newLedger()
	config.DB, mailing.DB = to.db, to.db
	app = to.connect(config).bills(bills.failing(0))
	app.publish("5")
	var fault error
	wait.Until(t, func() bool { fault = app.Health().Ready(); return fault != nil }, "Health says what is wrong")
	require.ErrorContains(t, fault, `the transaction ids of its messages or of group "billing" are those of another server`)
	for to.count(id) <= dumpedUntil { // it gives out the ids of the dump, too
	}
	caughtUp := time.Now()
	wait.Until(t, func() bool { return app.Health().Subscriptions[0].LastErrorAt.After(caughtUp) }, "the topic is read again")
	require.Error(t, app.Health().Ready(), "what was published meanwhile would never be read")
	require.True(t, bills.are(), "it goes on without the statement, and leaves messages out")
	assert.True(t, slices.ContainsFunc(app.logged(watermill.ErrorLogLevel, ""), func(line watermill.CapturedMessage) bool {
		return line.Err != nil && strings.Contains(fault.Error(), line.Err.Error())
	}), "no log line has it")

	_, statement, found := strings.Cut(fault.Error(), "execute as the owner of its tables: ")
	require.True(t, found, fault)
	to.exec(statement)
	wait.Until(t, func() bool { return bills.are("5") && app.Health().Ready() == nil }, "billing goes on")
	to.connect(mailing).bills(mails.failing(0))
	app.publish("6")
	wait.Until(t, func() bool { return mails.are("3", "4", "5", "6") && bills.are("5", "6") }, "both have got all")
}

// TestPostgresOffsetMovesWhileItIsRead: a process that locks the offset after another has moved it sees an id that is
// new to its statement. That is no id of another server.
func TestPostgresOffsetMovesWhileItIsRead(t *testing.T) {
	p := startPostgres(t)
	first, second := newLedger(), newLedger()
	p.connect(p.config()).bills(nothing).stop()
	// A view in place of the offsets holds one process between the start of its statement and the lock.
	p.exec(`ALTER TABLE "watermill_offsets_orders" RENAME TO offsets`)
	p.exec(`CREATE FUNCTION hold() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
		IF current_setting('application_name') = 'held' THEN PERFORM pg_advisory_xact_lock_shared(7); END IF;
		RETURN true; END $$`)
	p.exec(`CREATE VIEW "watermill_offsets_orders" AS SELECT * FROM offsets WHERE hold()`)
	held := p
	held.url += "&application_name=held"
	config := p.config()
	config.DB = held.open()
	b := p.connect(config).bills(second.failing(0))

	hold, err := p.db.Conn(t.Context())
	require.NoError(t, err)
	_, err = hold.ExecContext(t.Context(), `SELECT pg_advisory_lock(7)`)
	require.NoError(t, err)
	wait.Until(t, func() bool {
		return p.count(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'held'
			AND datname = current_database() AND wait_event = 'advisory' AND query LIKE '%SKIP LOCKED%'`) > 0
	}, "a statement is held")
	a := p.connect(p.config()).bills(first.failing(0))
	a.publish("1")
	wait.Until(t, func() bool { return first.are("1") }, "the other process goes on")
	a.stop()
	_, err = hold.ExecContext(t.Context(), `SELECT pg_advisory_unlock(7)`)
	require.NoError(t, err)
	require.NoError(t, hold.Close())
	b.publish("2")
	wait.Until(t, func() bool { return second.are("2") }, "the process goes on")
	assert.NoError(t, b.Health().Ready())
}
