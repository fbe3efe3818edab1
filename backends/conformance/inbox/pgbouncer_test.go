package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/inbox/pgxinbox"
)

// Behind a PgBouncer that gives each transaction another session, a driver that needs more than one round trip for a
// statement is refused. With all others each effect happens once, and so it does where each client has its own session.
// Without transactions there is no inbox.
func TestInboxBehindPgBouncer(t *testing.T) {
	postgres := database(t)
	for pooled, sessions := range map[string]int{"session": 100, "transaction": 8, "statement": 8} {
		t.Run(pooled, func(t *testing.T) {
			server, err := servers.PgBouncer(context.Background(), postgres, pooled, sessions)
			require.NoError(t, err)
			t.Cleanup(server.Stop)
			address, err := url.Parse(server.URL)
			require.NoError(t, err)
			onEachDriver(t, inbox.Config{}, func(t *testing.T, b *box) { b.behind(t, pooled, address.String()) })
		})
	}
}

func (b *box) behind(t *testing.T, pooled, address string) {
	t.Helper()
	for setting, once := range map[string]bool{
		"default_query_exec_mode=cache_statement": false, "default_query_exec_mode=describe_exec": false,
		"default_query_exec_mode=cache_describe": true, "default_query_exec_mode=exec": true,
		"default_query_exec_mode=simple_protocol": true,
		"binary_parameters=no":                    false, "binary_parameters=yes": true,
	} {
		if strings.HasPrefix(setting, "binary") != (b.driver == "postgres") {
			continue
		}
		behind := *b
		behind.t, behind.conns, behind.url = t, 8, address+"&"+setting
		var err error
		behind.db, err = sql.Open(strings.Replace(b.driver, pool, "pgx", 1), behind.url)
		require.NoError(t, err)
		behind.db.SetMaxOpenConns(behind.conns)
		switch {
		case pooled != "session" && !once:
			require.ErrorContains(t, refused(&behind), "behind a pooler", setting)
		case pooled == "statement":
			require.ErrorContains(t, refused(&behind), "in a transaction", setting)
		default:
			behind.open()
			behind.onceEach(setting)
		}
		require.NoError(t, behind.db.Close())
	}
}

// refused returns the error of New.
func refused(b *box) error {
	if b.driver != pool {
		_, err := inbox.New(b.db, b.config, nil)
		return err
	}
	connections, err := pgxpool.New(b.t.Context(), b.url)
	require.NoError(b.t, err)
	defer connections.Close()
	_, err = pgxinbox.New(connections, b.config, nil)
	return err
}

// onceEach delivers messages, many at the same time, and each twice.
func (b *box) onceEach(name string) {
	b.t.Helper()
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for n := range 10 {
				uuid := fmt.Sprint(name, " ", worker, " ", n)
				for again := range 2 {
					produced, repeated, err := b.deliver(b.t.Context(), "orders", uuid, produce)
					assert.NoError(b.t, err)
					assert.Equal(b.t, again == 1, repeated)
					if assert.Len(b.t, produced, 2) {
						assert.Equal(b.t, message.Payload("an invoice"), produced[0].Payload)
					}
				}
			}
		})
	}
	all.Wait()
	table := b.config.Table + "_effects WHERE message LIKE '" + name + " %'"
	assert.Equal(b.t, 80, b.count("SELECT count(*) FROM "+table))
	assert.Equal(b.t, 80, b.count("SELECT count(DISTINCT message) FROM "+table))
}
