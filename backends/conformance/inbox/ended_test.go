package main

import (
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/inbox/pgxinbox"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
)

// with opens the inbox once more, as a role with a setting has it.
func (b *box) with(setting string) *box {
	b.t.Helper()
	other := *b
	other.url += "&" + setting
	db, err := sql.Open(strings.Replace(b.driver, pool, "pgx", 1), other.url)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, db.Close()) })
	other.db = db
	other.open()
	return &other
}

// The server can end the wait for the first delivery before the inbox does. The second delivery has not failed.
func TestServerEndsTheWait(t *testing.T) {
	onEachDriver(t, inbox.Config{Wait: wait.Patience}, func(t *testing.T, b *box) {
		waiting := "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO ' || $1 || ' %'"
		for name, row := range map[string]struct {
			setting string
			end     func()
		}{
			"lock_timeout":      {"lock_timeout=100", func() {}},
			"statement_timeout": {"statement_timeout=2000", func() {}},
			"canceled":          {"", func() { b.count("SELECT count(pg_cancel_backend(pid)) "+waiting, b.config.Table) }},
			"terminated":        {"", func() { b.count("SELECT count(pg_terminate_backend(pid)) "+waiting, b.config.Table) }},
			"repeatable read":   {"default_transaction_isolation=repeatable%20read", nil}, // ended by the first delivery's commit
		} {
			second := b.with(row.setting)
			ended := make(chan error, 1)
			_, repeated, err := b.deliver(t.Context(), "orders", name, func(*message.Message) ([]*message.Message, error) {
				go func() {
					_, _, err := second.deliver(t.Context(), "orders", name, succeed)
					ended <- err
				}()
				if row.setting == "" || row.end == nil {
					b.awaitBlocked()
				}
				if row.end != nil {
					row.end()
					assert.ErrorIs(t, <-ended, msgctx.ErrFirstRuns, name)
				}
				return nil, nil
			})
			require.NoError(t, err, name)
			assert.False(t, repeated, name)
			if row.end == nil {
				assert.ErrorIs(t, <-ended, msgctx.ErrFirstRuns, name)
			}
			if name == "statement_timeout" {
				second = b // this delivery waits for nothing, and may be slow
			}
			_, repeated, err = second.deliver(t.Context(), "orders", name, fail)
			require.NoError(t, err, name)
			assert.True(t, repeated, name)
			assert.Equal(t, 1, b.effects(name), name)
		}
	})
}

// A handler that takes longer than the server lets a transaction wait fails, with the setting in the reason.
func TestSettingThatAHandlerCannotMeetIsNamed(t *testing.T) {
	onEachDriver(t, inbox.Config{}, func(t *testing.T, b *box) {
		// only the wait of the handler takes that long
		limited := b.with("idle_in_transaction_session_timeout=2000")
		for uuid, outcome := range map[string]error{"succeeds": nil, "fails": errDown} {
			_, _, err := limited.deliver(t.Context(), "orders", uuid, func(*message.Message) ([]*message.Message, error) {
				b.eventually("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND "+
					"query LIKE 'INSERT INTO ' || $1 || '_effects %'", 0)
				return nil, outcome
			})
			require.ErrorContains(t, err, "the server ends a transaction after 2s (idle_in_transaction_session_timeout",
				uuid)
			if outcome != nil {
				assert.ErrorIs(t, err, outcome)
			}
			assert.Zero(t, b.rows())
		}
	})
}

// eventually waits until a query about the table returns a number.
func (b *box) eventually(query string, want int) {
	b.t.Helper()
	wait.Until(b.t, func() bool { return b.count(query, b.config.Table) == want }, "%d rows of %s", want, query)
}

// commit does what a handler must not do. Only database/sql lets it.
func (b *box) commit(msg *message.Message) error {
	if b.driver == pool {
		return pgxinbox.Tx(msg.Context()).Commit(msg.Context())
	}
	return inbox.Tx(msg.Context()).Commit()
}

// A handler that commits by itself fails, and no later delivery is taken for a duplicate: what it had produced would be
// lost, or what it had not done yet. Pgxinbox commits nothing, so its handlers are called again.
func TestHandlerThatCommitsFails(t *testing.T) {
	onEachDriver(t, inbox.Config{}, func(t *testing.T, b *box) {
		for name, then := range map[string]message.HandlerFunc{
			"commits": produce, "commits and fails": fail, "commits and panics": nil, "commits by a statement": produce,
		} {
			func() {
				defer func() { assert.Equal(t, then == nil, recover() != nil, name) }()
				produced, _, err := b.deliver(t.Context(), "orders", name,
					func(msg *message.Message) ([]*message.Message, error) {
						if name == "commits by a statement" {
							require.NoError(t, b.inTx(msg, "COMMIT"))
						} else {
							_ = b.commit(msg)
						}
						return then(msg)
					})
				if name == "commits by a statement" && b.driver != pool {
					return // what it has produced is stored, whatever the driver says of the commit
				}
				require.Error(t, err, name)
				assert.Empty(t, produced, name)
				if name != "commits and fails" {
					assert.ErrorContains(t, err, "the handler has ended the transaction of the inbox", name)
					assert.True(t, backoff.IsPermanent(err), name)
				}
			}()
			effects := b.effects(name)
			called := false
			produced, repeated, err := b.deliver(t.Context(), "orders", name,
				func(msg *message.Message) ([]*message.Message, error) {
					called = true
					return produce(msg)
				})
			switch {
			case name == "commits by a statement" && b.driver != pool:
				assert.True(t, repeated, name)
				assert.Len(t, produced, 2)
			case effects == 0:
				require.NoError(t, err, name)
				assert.False(t, repeated, name)
				assert.Len(t, produced, 2, name)
			default:
				assert.ErrorContains(t, err, "the handler has committed the transaction of the inbox", name)
				assert.True(t, backoff.IsPermanent(err), name)
				assert.False(t, called, name)
			}
			assert.Equal(t, b.driver != pool || name == "commits by a statement", effects == 1, name)
			assert.Equal(t, 1, b.effects(name), name)
		}
	})
}

// Where a handler has rolled back by itself, a delivery that waited for it can be handled and succeed before the first
// one ends: that row is not the first one's.
func TestRollbackLeavesAnotherSuccess(t *testing.T) {
	onEachDriver(t, inbox.Config{Wait: wait.Patience}, func(t *testing.T, b *box) {
		ended := make(chan error, 1)
		_, _, err := b.deliver(t.Context(), "orders", "1", func(msg *message.Message) ([]*message.Message, error) {
			go func() {
				_, _, err := b.deliver(t.Context(), "orders", "1", succeed)
				ended <- err
			}()
			b.awaitBlocked()
			if b.driver == pool { // its method is known to have committed nothing
				require.NoError(t, b.inTx(msg, "ROLLBACK"))
			} else {
				_, _ = b.rollback(msg)
			}
			require.NoError(t, <-ended)
			return nil, errDown
		})
		require.ErrorIs(t, err, errDown)
		_, repeated, err := b.deliver(t.Context(), "orders", "1", fail)
		require.NoError(t, err)
		assert.True(t, repeated)
		assert.Equal(t, 1, b.effects("1"))
	})
}

// Where a process dies between such a commit and the end of its handler, the row is known as that of no success, if the
// handler can produce messages. Other handlers leave it.
func TestRowOfAHandlerThatCommitsAndDies(t *testing.T) {
	onEachDriver(t, inbox.Config{}, func(t *testing.T, b *box) {
		pubsub := gochannel.NewGoChannel(gochannel.Config{}, nil)
		defer func() { require.NoError(t, pubsub.Close()) }()
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		require.NoError(t, err)
		const unfinished = "SELECT count(*) FROM %s WHERE message_id = '1' AND handled_at = 'infinity'"
		committed := make(chan int, 10)
		router.AddHandler("billing", "orders", pubsub, "bills", pubsub, b.handler(
			func(msg *message.Message) ([]*message.Message, error) {
				_ = b.commit(msg)
				committed <- b.count(fmt.Sprintf(unfinished, b.config.Table))
				msg.Ack()
				return nil, nil
			})).AddMiddleware(b.Middleware)
		var ran sync.WaitGroup
		ran.Go(func() { assert.NoError(t, router.Run(t.Context())) })
		<-router.Running()
		require.NoError(t, pubsub.Publish("orders", message.NewMessage("1", nil)))
		want := 1
		if b.driver == pool {
			want = 0 // nothing is committed
		}
		assert.Equal(t, want, <-committed)
		require.NoError(t, router.Close())
		ran.Wait()
		assert.Equal(t, want, b.rows())
	})
}

// No retry can store such an id.
func TestIDThatPostgreSQLCannotStore(t *testing.T) {
	onEachDriver(t, inbox.Config{}, func(t *testing.T, b *box) {
		random := make([]byte, 4000)
		_, _ = rand.Read(random)
		for name, uuid := range map[string]string{
			"NUL": "order\x001", "no UTF-8": "order \xff", "larger than the index has": hex.EncodeToString(random),
		} {
			_, _, err := b.deliver(t.Context(), "orders", uuid, func(*message.Message) ([]*message.Message, error) {
				assert.Fail(t, "the handler is called", name)
				return nil, nil
			})
			require.ErrorContains(t, err, "let its publisher set another one", name)
			assert.True(t, backoff.IsPermanent(err), name)
		}
		long := strings.Repeat("order ", 1000) // PostgreSQL compresses it
		_, _, err := b.deliver(t.Context(), "orders", long, succeed)
		require.NoError(t, err)
		assert.Equal(t, 1, b.rows())
	})
}
