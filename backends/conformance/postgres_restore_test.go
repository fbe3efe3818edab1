package conformance

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/tools/server"
)

// handled is which messages a handler has got.
type handled struct {
	mu  sync.Mutex
	ids []string
}

func (h *handled) add(msg *message.Message) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids = append(h.ids, msg.UUID)
	return nil
}

func (h *handled) are(ids ...string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Equal(slices.Sorted(slices.Values(h.ids)), ids)
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
	var bills, mails handled
	retries, stopBilling := from.app(config, bills.add)
	_, stopMailing := from.app(mailing, mails.add)
	from.publish(retries, "orders", "1", "2")
	from.eventually("mailing has not got all", func() bool { return mails.are("1", "2") })
	stopMailing()
	from.publish(retries, "orders", "3", "4")
	from.eventually("billing has not got all", func() bool { return bills.are("1", "2", "3", "4") })
	stopBilling()

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

	bills, mails = handled{}, handled{}
	config.DB, mailing.DB = to.db, to.db
	logs := watermill.NewCaptureLogger()
	retries, _ = to.appWithLog(config, logs, bills.add)
	to.publish(retries, "orders", "5")
	var fault error
	to.eventually("Health does not say what is wrong", func() bool {
		fault = retries.Health().Ready()
		return fault != nil
	})
	require.ErrorContains(t, fault, `the transaction ids of its messages or of group "billing" are those of another server`)
	for to.count(id) <= dumpedUntil { // it gives out the ids of the dump, too
	}
	caughtUp := time.Now()
	to.eventually("the topic is not read again", func() bool {
		return retries.Health().Subscriptions[0].LastErrorAt.After(caughtUp)
	})
	require.Error(t, retries.Health().Ready(), "what was published meanwhile would never be read")
	require.True(t, bills.are(), "it goes on without the statement, and leaves messages out")
	said := false
	for _, line := range logs.Captured()[watermill.ErrorLogLevel] {
		said = said || line.Err != nil && strings.Contains(fault.Error(), line.Err.Error())
	}
	assert.True(t, said, "no log line has it: %v", logs.Captured()[watermill.ErrorLogLevel])

	_, statement, found := strings.Cut(fault.Error(), "execute as the owner of its tables: ")
	require.True(t, found, fault)
	to.exec(statement)
	to.eventually("billing stands", func() bool { return bills.are("5") })
	to.eventually("Health is not ready", func() bool { return retries.Health().Ready() == nil })
	to.app(mailing, mails.add)
	to.publish(retries, "orders", "6")
	to.eventually("mailing has not got all", func() bool { return mails.are("3", "4", "5", "6") })
	to.eventually("billing has not got all", func() bool { return bills.are("5", "6") })
}

// TestPostgresOffsetMovesWhileItIsRead: a process that locks the offset after another has moved it sees an id that is
// new to its statement. That is no id of another server.
func TestPostgresOffsetMovesWhileItIsRead(t *testing.T) {
	p := startPostgres(t)
	var first, second handled
	_, stop := p.app(p.config(), first.add)
	stop()
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
	b, _ := p.app(config, second.add)

	hold, err := p.db.Conn(t.Context())
	require.NoError(t, err)
	_, err = hold.ExecContext(t.Context(), `SELECT pg_advisory_lock(7)`)
	require.NoError(t, err)
	p.eventually("no statement is held", func() bool {
		return p.count(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'held'
			AND datname = current_database() AND wait_event = 'advisory' AND query LIKE '%SKIP LOCKED%'`) > 0
	})
	a, stop := p.app(p.config(), first.add)
	p.publish(a, "orders", "1")
	p.eventually("the other process stands", func() bool { return first.are("1") })
	stop()
	_, err = hold.ExecContext(t.Context(), `SELECT pg_advisory_unlock(7)`)
	require.NoError(t, err)
	require.NoError(t, hold.Close())
	p.publish(b, "orders", "2")
	p.eventually("the process stands", func() bool { return second.are("2") })
	assert.NoError(t, b.Health().Ready())
}
