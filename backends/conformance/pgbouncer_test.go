package conformance

import (
	"cmp"
	"database/sql"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/letters"
)

// The drivers, and how they execute a statement that has arguments. Once: in one round trip.
var statementModes = map[string]struct {
	driver, setting string
	once            bool
}{
	"pgx":                        {driver: "pgx"},
	"pgx describe_exec":          {driver: "pgx", setting: "default_query_exec_mode=describe_exec"},
	"pgx cache_describe":         {driver: "pgx", setting: "default_query_exec_mode=cache_describe", once: true},
	"pgx exec":                   {driver: "pgx", setting: "default_query_exec_mode=exec", once: true},
	"pgx simple":                 {driver: "pgx", setting: "default_query_exec_mode=simple_protocol", once: true},
	"pgx with another isolation": {driver: "pgx", setting: "default_transaction_isolation=serializable"},
	"pq":                         {driver: "postgres"},
	"pq binary":                  {driver: "postgres", setting: "binary_parameters=yes", once: true},
}

var bouncers struct {
	sync.Mutex
	hosts map[string]string // by pool_mode
}

// behind returns the database as it is behind a PgBouncer, or without one where the mode is empty.
func (p onPostgres) behind(mode, driver, setting string) *sql.DB {
	p.t.Helper()
	bouncers.Lock()
	defer bouncers.Unlock()
	if bouncers.hosts[mode] == "" && mode != "" {
		server, err := servers.PgBouncer(interrupted, p.url, mode, 8)
		require.NoError(p.t, err)
		keep(server)
		address, err := url.Parse(server.URL)
		require.NoError(p.t, err)
		if bouncers.hosts == nil {
			bouncers.hosts = map[string]string{}
		}
		bouncers.hosts[mode] = address.Host
	}
	address, err := url.Parse(p.url)
	require.NoError(p.t, err)
	address.Host = cmp.Or(bouncers.hosts[mode], address.Host)
	db, err := sql.Open(driver, address.String()+"&"+setting)
	require.NoError(p.t, err)
	db.SetMaxOpenConns(16)
	if mode == "session" {
		db.SetMaxOpenConns(8) // what the pooler has
	}
	p.t.Cleanup(func() { require.NoError(p.t, db.Close()) })
	return db
}

// With each driver all works: on the server itself, behind a PgBouncer whose sessions are those of its clients, and where
// a statement needs one round trip, behind one that gives each transaction another session. There the others are refused:
// parts of a statement would reach different sessions. Nothing works where a client may have no transaction.
func TestPostgresDriversAndPoolers(t *testing.T) {
	for _, pool := range []string{"", "session", "transaction", "statement"} {
		for name, mode := range statementModes {
			if pool == "statement" && name != "pgx exec" ||
				pool != "" && strings.Contains(mode.setting, "isolation") { // a PgBouncer refuses the parameter
				continue
			}
			t.Run(pool+" "+name, func(t *testing.T) {
				p := startPostgres(t)
				p.connect(p.config()).stop() // the tables are there
				config := p.config()
				config.Lease = time.Minute // a slow machine must not cause duplicates
				config.DB = p.behind(pool, mode.driver, mode.setting)
				refused := map[bool]string{
					pool == "transaction" && !mode.once: "default_query_exec_mode=cache_describe with pgx, binary_parameters=yes with pq",
					pool == "statement":                 "transaction blocks not allowed in statement pooling mode",
				}[true]
				if refused == "" {
					keepsEveryByte(t, p, config)
					return
				}
				_, err := postgresretry.Connect(config, nil)
				require.ErrorContains(t, err, refused)
				_, err = p.store(config).Redrive(t.Context(), deadOrders, letters.Redrive{})
				require.Error(t, err)
			})
		}
	}
}

// What a copy has is what the message had, also where PostgreSQL's own types could not have it. A row that another program
// has inserted stops no other. All become dead letters, and come back.
func keepsEveryByte(t *testing.T, p onPostgres, config postgresretry.Config) {
	t.Helper()
	seen := newLedger()
	var repaired atomic.Bool
	app := p.connect(config).bills(func(msg *message.Message) error {
		if seen.add(msg); repaired.Load() {
			return nil
		}
		return errDown
	})
	odd := message.NewMessage("odd", []byte{0, 0xff, '\\', '"'})
	odd.Metadata = message.Metadata{"nul": "a\x00b", "\xff": "\xfe", "quotes": `"\{},`, "": ""}
	require.NoError(t, app.Publisher().Publish("retry.return.billing.orders", odd))
	app.publish(ids(40)...) // in batches
	p.exec(`INSERT INTO retry_messages (topic, due, uuid, payload, metadata)
		VALUES ('retry.return.billing.orders', now() - interval '1 hour', 'foreign', '', '[1, {"a": null}]')`)
	p.awaitDead(42)
	for id, tries := range seen.all() {
		assert.Len(t, tries, 2, id)
		for _, one := range tries {
			switch id {
			case "odd":
				assert.Equal(t, odd.Payload, one.msg.Payload)
				assert.Subset(t, one.msg.Metadata, odd.Metadata)
			case "foreign":
			default:
				assert.Equal(t, "order "+id, string(one.msg.Payload))
			}
		}
	}
	store := p.store(config)
	for _, letter := range browse(t, store, deadOrders) {
		if letter.ID == "odd" {
			assert.Equal(t, map[string]string(odd.Metadata), map[string]string(letter.Metadata))
			assert.Equal(t, []byte(odd.Payload), letter.Payload)
		}
	}
	repaired.Store(true)
	_, err := store.Redrive(t.Context(), deadOrders, letters.Redrive{})
	require.NoError(t, err)
	p.awaitNothing()
}

// A command that has ended locks nothing: its session is that of another client then.
func TestPostgresLockBehindPgBouncer(t *testing.T) {
	p := startPostgres(t)
	config := p.config()
	config.DB = p.behind("transaction", "postgres", "binary_parameters=yes")
	p.connect(config).publishTo(deadOrders, ids(6)...)
	discards(t, p.store(config), 5)
	discards(t, p.store(p.config()), 1)
	assert.Zero(t, p.count(`SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
		WHERE locktype = 'advisory' AND datname = current_database()`))
}

// discards discards letters in many calls, each of which has the lock.
func discards(t *testing.T, store letters.Store, n int) {
	t.Helper()
	for range n {
		found := browse(t, store, deadOrders)
		require.NotEmpty(t, found)
		_, err := store.Discard(t.Context(), deadOrders, letters.Discard{Filter: letters.Filter{IDs: []string{found[0].ID}}})
		require.NoError(t, err)
	}
}
