package conformance

import (
	"database/sql"
	"errors"
	"net/url"
	"sync"
	"testing"

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
	"pgx":                {driver: "pgx"},
	"pgx describe_exec":  {driver: "pgx", setting: "default_query_exec_mode=describe_exec"},
	"pgx cache_describe": {driver: "pgx", setting: "default_query_exec_mode=cache_describe", once: true},
	"pgx exec":           {driver: "pgx", setting: "default_query_exec_mode=exec", once: true},
	"pgx simple":         {driver: "pgx", setting: "default_query_exec_mode=simple_protocol", once: true},
	"pq":                 {driver: "postgres"},
	"pq binary":          {driver: "postgres", setting: "binary_parameters=yes", once: true},
}

var bouncers struct {
	sync.Mutex
	hosts map[string]string // by pool_mode
}

// behind returns the database as it is behind a PgBouncer.
func (p onPostgres) behind(mode, driver, setting string) *sql.DB {
	p.t.Helper()
	bouncers.Lock()
	defer bouncers.Unlock()
	if bouncers.hosts[mode] == "" {
		server, err := servers.PgBouncer(interrupted, sharedPostgres, mode, 8)
		require.NoError(p.t, err)
		running.Lock()
		running.servers = append(running.servers, server)
		running.Unlock()
		address, err := url.Parse(server.URL)
		require.NoError(p.t, err)
		if bouncers.hosts == nil {
			bouncers.hosts = map[string]string{}
		}
		bouncers.hosts[mode] = address.Host
	}
	address, err := url.Parse(p.url)
	require.NoError(p.t, err)
	address.Host = bouncers.hosts[mode]
	db, err := sql.Open(driver, address.String()+"&"+setting)
	require.NoError(p.t, err)
	db.SetMaxOpenConns(16)
	if mode == "session" {
		db.SetMaxOpenConns(8) // what the pooler has
	}
	p.t.Cleanup(func() { require.NoError(p.t, db.Close()) })
	return db
}

// Behind a PgBouncer whose sessions are those of its clients, and with each driver that needs one round trip for a
// statement behind one that gives each transaction another session, all works as without a PgBouncer.
func TestPostgresBehindPgBouncer(t *testing.T) {
	for _, pool := range []string{"session", "transaction"} {
		for name, mode := range statementModes {
			if pool == "transaction" && !mode.once {
				continue
			}
			t.Run(pool+" "+name, func(t *testing.T) {
				p := startPostgres(t)
				config := p.config()
				config.DB = p.behind(pool, mode.driver, mode.setting)
				worksBehindPgBouncer(t, p, config)
			})
		}
	}
}

// The other drivers are refused: parts of a statement would reach different sessions.
func TestPostgresRefusesADriverBehindPgBouncer(t *testing.T) {
	for name, mode := range statementModes {
		if mode.once {
			continue
		}
		t.Run(name, func(t *testing.T) {
			p := startPostgres(t)
			retries, err := postgresretry.Connect(p.config(), nil)
			require.NoError(t, err)
			require.NoError(t, retries.Close())
			config := p.config()
			config.DB = p.behind("transaction", mode.driver, mode.setting)
			_, err = postgresretry.Connect(config, nil)
			require.ErrorContains(t, err, "default_query_exec_mode=cache_describe with pgx, binary_parameters=yes with pq")
			_, err = p.store(config).Redrive(t.Context(), deadOrders, letters.Redrive{})
			require.ErrorContains(t, err, "default_query_exec_mode=cache_describe")
		})
	}
}

// A command that has ended locks nothing: its session is that of another client then.
func TestPostgresLockBehindPgBouncer(t *testing.T) {
	p := startPostgres(t)
	config := p.config()
	config.DB = p.behind("transaction", "postgres", "binary_parameters=yes")
	retries, err := postgresretry.Connect(config, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, retries.Close()) }()
	p.publish(retries, deadOrders, ids(6)...)
	discards(t, p.store(config), 5)
	discards(t, p.store(p.config()), 1)
	assert.Zero(t, p.count(`SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
		WHERE locktype = 'advisory' AND datname = current_database()`))
}

// Nothing of this library works where a client may have no transaction.
func TestPostgresBehindPgBouncerWithoutTransactions(t *testing.T) {
	p := startPostgres(t)
	retries, err := postgresretry.Connect(p.config(), nil)
	require.NoError(t, err)
	require.NoError(t, retries.Close())
	config := p.config()
	config.DB = p.behind("statement", "pgx", "default_query_exec_mode=exec")
	_, err = postgresretry.Connect(config, nil)
	require.ErrorContains(t, err, "transaction blocks not allowed in statement pooling mode")
}

func worksBehindPgBouncer(t *testing.T, p onPostgres, config postgresretry.Config) {
	t.Helper()
	var got calls
	repaired := make(chan struct{})
	retries, _ := p.app(config, func(msg *message.Message) error {
		got.add(msg)
		select {
		case <-repaired:
			return nil
		default:
			return errors.New("down")
		}
	})
	all := ids(20)
	p.publish(retries, "orders", all...)
	p.eventually("all are dead letters", func() bool {
		return p.count(`SELECT count(*) FROM retry_messages WHERE due = 'infinity'`) == len(all)
	})
	for _, id := range all {
		for _, msg := range got.of(id) {
			assert.Equal(t, id, string(msg.Payload))
		}
		assert.Len(t, got.of(id), 2, id)
	}
	behind := p.store(config)
	close(repaired)
	_, err := behind.Redrive(t.Context(), deadOrders, letters.Redrive{})
	require.NoError(t, err)
	p.eventually("all are handled", func() bool { return p.count(`SELECT count(*) FROM retry_messages`) == 0 })
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
