package postgresretry

import (
	"database/sql"
	"database/sql/driver"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// unused is a database that no test connects to.
func unused(t *testing.T) *sql.DB {
	t.Helper()
	db := sql.OpenDB(noServer{})
	t.Cleanup(func() { _ = db.Close() })
	return db
}

type noServer struct{ driver.Connector }

func complete(t *testing.T) Config {
	t.Helper()
	return Config{DB: unused(t), Group: "billing", Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 3)}}
}

func TestValidateReportsAllFaults(t *testing.T) {
	t.Parallel()
	require.NoError(t, complete(t).Validate())
	err := Config{Prefix: "a b", Table: "watermill_retry", Lease: time.Millisecond}.Validate()
	for _, field := range []string{"DB is nil", "Group is empty", "Policy.Schedule: ", "Prefix is", "Table is", "Lease is 1ms"} {
		require.ErrorContains(t, err, field)
	}
	_, err = Connect(Config{}, nil)
	require.ErrorContains(t, err, "invalid postgresretry.Config")
	_, err = Letters(Config{}, nil)
	require.ErrorContains(t, err, "DB is nil")
	assert.NotContains(t, err.Error(), "Group", "the letters of all groups are in one table")
}

func TestTablesThatAreRefused(t *testing.T) {
	t.Parallel()
	for table, valid := range map[string]bool{
		"": true, "retries": true, "app.retries": true, "Retries_2": true, strings.Repeat("t", 50): true,
		strings.Repeat("t", 51): false, "a.b.c": false, `a"b`: false, "2a": false, "app.watermill_x": false, "a-b": false,
		".a": false, "a.": false,
	} {
		c := complete(t)
		c.Table = table
		assert.Equal(t, valid, c.Validate() == nil, "%q", table)
	}
}

// A process needs a connection for its reads, one for its acks, and some for its copies.
func TestTooFewConnectionsAreRefused(t *testing.T) {
	t.Parallel()
	c := complete(t)
	c.DB.SetMaxOpenConns(3)
	require.ErrorContains(t, c.Validate(), "at most 3 open connections")
	c.DB.SetMaxOpenConns(4)
	require.NoError(t, c.Validate())
}
