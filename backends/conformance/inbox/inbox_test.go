package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/inbox/pgxinbox"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/letters"
)

var errDown = errors.New("the bank is down")

// box is an inbox with a table of its own, in a database with the effects of a handler.
type box struct {
	engine
	t      *testing.T
	db     *sql.DB
	driver string
	url    string
	conns  int // of the pool of pgx
	config inbox.Config
	logs   *watermill.CaptureLoggerAdapter
}

// engine is what package inbox and package pgxinbox have.
type engine interface {
	Middleware(message.HandlerFunc) message.HandlerFunc
}

// drivers are those of database/sql. The package pgxinbox is tested beside them.
var drivers = []string{"pgx", "postgres"}

const pool = "pool"

// open opens the inbox once more, as another process has it.
func (b *box) open() {
	b.t.Helper()
	var err error
	if b.driver != pool {
		b.engine, err = inbox.New(b.db, b.config, b.logs)
		require.NoError(b.t, err)
		return
	}
	connections, err := pgxpool.New(context.Background(), fmt.Sprintf("%s&pool_max_conns=%d", b.url, b.conns))
	require.NoError(b.t, err)
	b.t.Cleanup(connections.Close)
	b.engine, err = pgxinbox.New(connections, b.config, b.logs)
	require.NoError(b.t, err)
}

// inTx executes a statement in the transaction of a message.
func (b *box) inTx(msg *message.Message, query string, args ...any) (err error) {
	ctx := msg.Context()
	if b.driver == pool {
		_, err = pgxinbox.Tx(ctx).Exec(ctx, query, args...)
	} else {
		_, err = inbox.Tx(ctx).ExecContext(ctx, query, args...)
	}
	return err
}

// onEachDriver runs a test with each driver.
func onEachDriver(t *testing.T, config inbox.Config, test func(*testing.T, *box)) {
	t.Parallel()
	url := database(t)
	for _, driver := range append(drivers, pool) {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db, err := sql.Open(strings.Replace(driver, pool, "pgx", 1), url)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			b := &box{t: t, db: db, driver: driver, url: url, conns: 10, config: config, logs: watermill.NewCaptureLogger()}
			b.config.Table = strings.ToLower(strings.NewReplacer("/", "_", "Test", "t_").Replace(t.Name()))
			b.config.CreateTable = true
			b.open()
			b.exec("CREATE TABLE " + b.config.Table + "_effects (message text NOT NULL)")
			test(t, b)
		})
	}
}

func (b *box) exec(query string, args ...any) {
	b.t.Helper()
	_, err := b.db.Exec(query, args...)
	require.NoError(b.t, err)
}

func (b *box) count(query string, args ...any) (n int) {
	b.t.Helper()
	require.NoError(b.t, b.db.QueryRow(query, args...).Scan(&n))
	return n
}

func (b *box) effects(uuid string) int {
	b.t.Helper()
	return b.count("SELECT count(*) FROM "+b.config.Table+"_effects WHERE message = $1", uuid)
}

func (b *box) rows() int { b.t.Helper(); return b.count("SELECT count(*) FROM " + b.config.Table) }

// handler writes the effect of the message, and then does what the test wants.
func (b *box) handler(then message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if err := b.inTx(msg, "INSERT INTO "+b.config.Table+"_effects VALUES ($1)", msg.UUID); err != nil {
			return nil, err
		}
		return then(msg)
	}
}

// deliver delivers a message of a queue, as a retry middleware does. It returns whether it was a duplicate.
func (b *box) deliver(
	ctx context.Context, queue, uuid string, then message.HandlerFunc,
) (produced []*message.Message, repeated bool, err error) {
	return b.deliverRedriven(ctx, queue, uuid, letters.Redriven{}, then)
}

// deliverRedriven delivers a message with a history.
func (b *box) deliverRedriven(
	ctx context.Context, queue, uuid string, history letters.Redriven, then message.HandlerFunc,
) (produced []*message.Message, repeated bool, err error) {
	bound := msgctx.NewContext(ctx, &msgctx.Subscription{Queue: queue})
	msg := message.NewMessageWithContext(bound, uuid, []byte("order"))
	if history.Times > 0 {
		history.Write(msg.Metadata)
	}
	own := msgctx.Lookup(msg)
	own.Called()
	produced, err = b.Middleware(b.handler(then))(msg)
	select {
	case <-msg.Nacked(): // it belongs to its subscriber again
	default:
		assert.Equal(b.t, bound, msg.Context(), "the transaction stays in the context")
	}
	return produced, own.Repeated(), err
}

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

func fail(*message.Message) ([]*message.Message, error) { return nil, errDown }

func produceNil(*message.Message) ([]*message.Message, error) { return message.Messages{nil}, nil }

// produce returns two messages, one of which no text can hold.
func produce(*message.Message) ([]*message.Message, error) {
	hostile := message.NewMessage("\x00\xff", []byte("\x00\xfe"))
	hostile.Metadata = message.Metadata{"\x00": "\xff", "key": "value"}
	return message.Messages{message.NewMessage("invoice-1", []byte("an invoice")), hostile}, nil
}

func TestSecondDeliveryIsADuplicate(t *testing.T) {
	onEachDriver(t, inbox.Config{}, func(t *testing.T, b *box) {
		first, repeated, err := b.deliver(t.Context(), "orders", "1", produce)
		require.NoError(t, err)
		assert.False(t, repeated)
		for range 2 {
			again, repeated, err := b.deliver(t.Context(), "orders", "1", fail)
			require.NoError(t, err)
			assert.True(t, repeated)
			require.Len(t, again, 2)
			for i := range again {
				assert.True(t, first[i].Equals(again[i]), "%v %v", first[i], again[i])
			}
		}
		assert.Equal(t, 1, b.effects("1"))
		assert.Len(t, b.logs.Captured()[watermill.InfoLogLevel], 2)

		none, _, err := b.deliver(t.Context(), "orders", "2", succeed)
		require.NoError(t, err)
		assert.Empty(t, none)
		none, repeated, err = b.deliver(t.Context(), "orders", "2", fail)
		require.NoError(t, err)
		assert.True(t, repeated)
		assert.Empty(t, none)

		_, repeated, err = b.deliver(t.Context(), "orders_shipping", "1", succeed)
		require.NoError(t, err)
		assert.False(t, repeated, "another group has not handled it")
		assert.Equal(t, 2, b.effects("1"))
	})
}

// A redrive of a message that was handled is a duplicate, unless the operator asks for the handler. Two redrives of one
// letter are one.
func TestRedriveOfAHandledMessage(t *testing.T) {
	onEachDriver(t, inbox.Config{Retention: time.Hour}, func(t *testing.T, b *box) {
		before, _, err := b.deliver(t.Context(), "orders", "1", succeed)
		require.NoError(t, err)
		assert.Empty(t, before)
		failed := func(n int) time.Time { return time.Now().Truncate(time.Second).Add(-time.Duration(n) * time.Minute) }
		history := letters.Redriven{}
		for _, row := range []struct {
			redrive letters.PastRedrive
			effects int
		}{
			{letters.PastRedrive{FailedAt: failed(4)}, 1},
			{letters.PastRedrive{FailedAt: failed(3), Again: true}, 2},
			{letters.PastRedrive{FailedAt: failed(2)}, 2},
			{letters.PastRedrive{FailedAt: failed(1), Again: true}, 3},
		} {
			for _, run := range []string{"published, and killed before the letter was removed", "repeated"} {
				row.redrive.Run = run
				_, _, err := b.deliverRedriven(t.Context(), "orders", "1", history.Add(row.redrive), succeed)
				require.NoError(t, err)
				assert.Equal(t, row.effects, b.effects("1"), "%+v", row.redrive)
			}
			history = history.Add(row.redrive)
		}
		assert.Equal(t, 6, b.logged("A redriven message was handled before"))
		assert.Zero(t, b.logged("A redriven message failed first before the retention"))
		for uuid, ago := range map[string]time.Duration{"old": 61 * time.Minute, "young": 50 * time.Minute} {
			history := letters.Redriven{}.Add(letters.PastRedrive{Run: "5", FailedAt: time.Now().Add(-ago)})
			_, _, err := b.deliverRedriven(t.Context(), "orders", uuid, history, succeed)
			require.NoError(t, err)
		}
		assert.Equal(t, 1, b.logged("A redriven message failed first before the retention"))
	})
}

// logged returns how many lines of the log begin with a text.
func (b *box) logged(text string) (n int) {
	for _, lines := range b.logs.Captured() {
		for _, line := range lines {
			if strings.HasPrefix(line.Msg, text) {
				n++
			}
		}
	}
	return n
}

// However a call fails, its effects and its row are gone: the retry is no duplicate.
func TestFailureRollsBackBoth(t *testing.T) {
	onEachDriver(t, inbox.Config{}, func(t *testing.T, b *box) {
		for name, row := range map[string]struct {
			then message.HandlerFunc
			want error // nil: any
		}{
			"error":         {fail, errDown},
			"nil message":   {produceNil, panics.ErrNilMessage},
			"aborted":       {b.abort, nil},
			"too early end": {b.rollback, nil},
		} {
			_, _, err := b.deliver(t.Context(), "orders", name, row.then)
			require.Error(t, err, name)
			if row.want != nil {
				assert.ErrorIs(t, err, row.want, name)
			}
		}
		assert.PanicsWithValue(t, "a bug", func() {
			_, _, _ = b.deliver(t.Context(), "orders", "panic", func(*message.Message) ([]*message.Message, error) {
				panic("a bug")
			})
		})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _, _ = b.deliver(t.Context(), "orders", "goexit", func(*message.Message) ([]*message.Message, error) {
				runtime.Goexit()
				return nil, nil
			})
		}()
		<-ended
		_, _, err := b.deliver(t.Context(), "orders", "nack", func(msg *message.Message) ([]*message.Message, error) {
			msg.Nack() // the handler wants it once more
			return nil, nil
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		_, _, err = b.deliver(ctx, "orders", "shutdown", func(*message.Message) ([]*message.Message, error) {
			cancel()
			return nil, nil
		})
		require.Error(t, err)
		if !errors.Is(err, sql.ErrTxDone) { // database/sql has rolled it back before the commit
			require.ErrorIs(t, err, context.Canceled)
		}
		assert.Zero(t, b.rows())
		for _, uuid := range []string{
			"error", "nil message", "aborted", "too early end", "panic", "goexit", "nack", "shutdown",
		} {
			assert.Zero(t, b.effects(uuid), uuid)
			_, repeated, err := b.deliver(t.Context(), "orders", uuid, succeed)
			require.NoError(t, err)
			assert.False(t, repeated, uuid)
			assert.Equal(t, 1, b.effects(uuid), uuid)
		}
	})
}

// abort hides an error of the database, which has aborted the transaction.
func (b *box) abort(msg *message.Message) ([]*message.Message, error) {
	assert.Error(b.t, b.inTx(msg, "SELECT 1/0"))
	return nil, nil
}

// rollback does what a handler must not do.
func (b *box) rollback(msg *message.Message) ([]*message.Message, error) {
	if b.driver == pool {
		return nil, pgxinbox.Tx(msg.Context()).Rollback(msg.Context())
	}
	return nil, inbox.Tx(msg.Context()).Rollback()
}

// What a PoisonQueue inside takes has failed, also where the message has the same mark from a poison queue before. A mark
// alone is not a failure.
func TestPoisonQueueInsideRollsBack(t *testing.T) {
	onEachDriver(t, inbox.Config{}, func(t *testing.T, b *box) {
		sent := &failingPublisher{published: make(chan string, 10)}
		poison, err := middleware.PoisonQueue(sent, "poison")
		require.NoError(t, err)
		halfDone := func(*message.Message) ([]*message.Message, error) {
			return message.Messages{message.NewMessage("invoice", nil)}, errDown
		}
		deliver := func(reason string, then message.HandlerFunc) (produced []*message.Message) {
			bound := msgctx.NewContext(t.Context(), &msgctx.Subscription{Queue: "orders"})
			msg := message.NewMessageWithContext(bound, "1", nil)
			if reason != "" {
				msg.Metadata.Set(middleware.ReasonForPoisonedKey, reason)
			}
			msgctx.Lookup(msg).Called()
			produced, err := b.Middleware(poison(b.handler(then)))(msg)
			require.NoError(t, err)
			return produced
		}
		for _, reason := range []string{"", "another", errDown.Error()} {
			assert.Empty(t, deliver(reason, halfDone))
			assert.Equal(t, "1", <-sent.published)
			require.Zero(t, b.rows(), reason)
			require.Zero(t, b.effects("1"), reason)
		}
		assert.Len(t, deliver(errDown.Error(), produce), 2)
		assert.Equal(t, 1, b.rows())
		assert.Equal(t, 1, b.effects("1"))
	})
}

// The second of two deliveries waits, and becomes the first one where that fails.
func TestSecondDeliveryWaitsForTheFirst(t *testing.T) {
	onEachDriver(t, inbox.Config{Wait: wait.Patience}, func(t *testing.T, b *box) {
		for uuid, outcome := range map[string]error{"succeeds": nil, "fails": errDown} {
			began, end := make(chan struct{}), make(chan error)
			var both sync.WaitGroup
			both.Go(func() {
				slowly := func(msg *message.Message) ([]*message.Message, error) {
					close(began)
					if err := <-end; err != nil {
						return nil, err
					}
					return produce(msg)
				}
				_, repeated, err := b.deliver(t.Context(), "orders", uuid, slowly)
				assert.ErrorIs(t, err, outcome)
				assert.False(t, repeated)
			})
			<-began
			both.Go(func() {
				produced, repeated, err := b.deliver(t.Context(), "orders", uuid, produce)
				assert.NoError(t, err)
				assert.Equal(t, outcome == nil, repeated)
				assert.Len(t, produced, 2)
			})
			b.awaitBlocked()
			end <- outcome
			both.Wait()
			assert.Equal(t, 1, b.effects(uuid))
		}
	})
}

// awaitBlocked waits until a statement waits for another transaction that writes to the table.
func (b *box) awaitBlocked() {
	b.t.Helper()
	wait.Until(b.t, func() bool {
		return b.count("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND "+
			"query LIKE 'INSERT INTO ' || $1 || ' %'", b.config.Table) > 0
	}, "a statement waits")
}

func TestWaitHasABound(t *testing.T) {
	onEachDriver(t, inbox.Config{Wait: wait.Patience}, func(t *testing.T, b *box) {
		short := *b
		short.config.Wait = time.Second
		short.open()
		_, repeated, err := b.deliver(t.Context(), "orders", "1", func(*message.Message) ([]*message.Message, error) {
			for { // another delivery, while this one is handled
				_, _, err := short.deliver(t.Context(), "orders", "1", succeed)
				if !lateBegin(err) {
					assert.ErrorIs(t, err, msgctx.ErrFirstRuns)
					return nil, nil
				}
			}
		})
		require.NoError(t, err)
		assert.False(t, repeated)
		assert.Equal(t, 1, b.effects("1"))
	})
}

// lateBegin reports whether a transaction has not begun in time.
func lateBegin(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "inbox: cannot begin a transaction within 1s: ")
}

// All connections of the pool are in use: that is a failure, and not the wait for another delivery.
func TestBeginHasABound(t *testing.T) {
	onEachDriver(t, inbox.Config{Wait: time.Second}, func(t *testing.T, b *box) {
		b.conns = 1
		b.db.SetMaxOpenConns(b.conns)
		b.open()
		_, _, err := b.deliver(t.Context(), "orders", "1", func(*message.Message) ([]*message.Message, error) {
			_, _, err := b.deliver(t.Context(), "orders", "2", succeed)
			return nil, err
		})
		require.True(t, lateBegin(err), "%v", err)
		require.NotErrorIs(t, err, msgctx.ErrFirstRuns)
		require.NotErrorIs(t, err, context.Canceled)
		for { // a loaded machine needs long, too
			if _, _, err = b.deliver(t.Context(), "orders", "1", succeed); !lateBegin(err) {
				break
			}
		}
		require.NoError(t, err, "the connection was given back")
		assert.Equal(t, 1, b.effects("1"))
		assert.Equal(t, 1, b.rows())
	})
}

func TestShutdownEndsTheWait(t *testing.T) {
	onEachDriver(t, inbox.Config{Wait: wait.Patience}, func(t *testing.T, b *box) {
		_, _, err := b.deliver(t.Context(), "orders", "1", func(*message.Message) ([]*message.Message, error) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				_, _, err := b.deliver(ctx, "orders", "1", succeed)
				ended <- err
			}()
			b.awaitBlocked()
			cancel()
			err := <-ended
			assert.Error(t, err)
			assert.NotErrorIs(t, err, msgctx.ErrFirstRuns)
			return nil, nil
		})
		require.NoError(t, err)
	})
}

// Rows are deleted after the retention, and in slices: one with a message, the next one by the time of a pass. Each new
// process looks at one at once.
func TestRetention(t *testing.T) {
	onEachDriver(t, inbox.Config{Retention: time.Hour}, func(t *testing.T, b *box) {
		_, _, err := b.deliver(t.Context(), "orders", "young", succeed) // nothing is due for a minute now
		require.NoError(t, err)
		b.exec("INSERT INTO " + b.config.Table + " SELECT 'orders', 'old ' || n, '', now() - interval '61 minutes' " +
			"FROM generate_series(1, 10000) n")
		b.exec("INSERT INTO " + b.config.Table + " VALUES ('orders', 'kept', '', now() - interval '59 minutes')")
		_, _, err = b.deliver(t.Context(), "orders", "not yet", succeed)
		require.NoError(t, err)
		const young = 3 // with the one that is kept
		assert.Equal(t, 10_000+young, b.rows())
		for n := 0; b.rows() > young+n; n += 2 {
			require.Less(t, n, 400, "old rows are still there")
			before := b.rows()
			b.open()
			_, _, err := b.deliver(t.Context(), "orders", fmt.Sprint("sweeps ", n), succeed)
			require.NoError(t, err)
			after := b.rows()
			assert.LessOrEqual(t, before+1-after, 2_500, "what a message waits for")
			_, _, err = b.deliver(t.Context(), "orders", fmt.Sprint("does not ", n), succeed)
			require.NoError(t, err)
			assert.Equal(t, after+1, b.rows())
		}
		for _, uuid := range []string{"young", "kept", "not yet"} {
			_, repeated, err := b.deliver(t.Context(), "orders", uuid, succeed)
			require.NoError(t, err)
			assert.True(t, repeated, uuid)
		}
		assert.Empty(t, b.logs.Captured()[watermill.ErrorLogLevel])
	})
}

func TestTableIsMadeOnce(t *testing.T) {
	t.Parallel()
	url := database(t)
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	_, err = inbox.New(db, inbox.Config{Table: "missing"}, nil)
	require.ErrorContains(t, err, "apply Schema, or set CreateTable")
	_, err = inbox.New(nil, inbox.Config{Wait: -1}, nil)
	require.ErrorContains(t, err, "the database is nil")
	require.ErrorContains(t, err, "Config.Wait")
	var all sync.WaitGroup
	for range 8 { // instances that start at the same time
		all.Go(func() {
			_, err := inbox.New(db, inbox.Config{Table: "made_once", CreateTable: true}, nil)
			assert.NoError(t, err)
		})
	}
	all.Wait()
	for _, driver := range drivers { // as a migration does it
		other, err := sql.Open(driver, url)
		require.NoError(t, err)
		_, err = other.Exec(inbox.Schema("applied"))
		require.NoError(t, err)
		_, err = inbox.New(other, inbox.Config{Table: "applied"}, nil)
		require.NoError(t, err)
		require.NoError(t, other.Close())
	}
	_, err = db.Exec("CREATE TABLE other_columns (id text)")
	require.NoError(t, err)
	_, err = inbox.New(db, inbox.Config{Table: "other_columns"}, nil)
	assert.ErrorContains(t, err, "has other columns")
}

// The transaction of pgxinbox does all that pgx's own does, and nothing when the handler has returned.
func TestTxOfPgx(t *testing.T) {
	onEachDriver(t, inbox.Config{}, func(t *testing.T, b *box) {
		if b.driver != pool {
			return
		}
		ctx, table := t.Context(), b.config.Table+"_effects"
		insert := "INSERT INTO " + table + " VALUES ($1)"
		var tx pgx.Tx
		_, _, err := b.deliver(ctx, "orders", "1", func(msg *message.Message) ([]*message.Message, error) {
			tx = pgxinbox.Tx(msg.Context())
			for name, outcome := range map[string]error{"kept": nil, "taken back": errDown} {
				err := pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error {
					_, err := nested.Exec(ctx, insert, name)
					return errors.Join(err, outcome)
				})
				assert.ErrorIs(t, err, outcome)
			}
			_, err := tx.CopyFrom(ctx, pgx.Identifier{table}, []string{"message"}, pgx.CopyFromRows([][]any{{"copied"}}))
			require.NoError(t, err)
			batch := &pgx.Batch{}
			batch.Queue(insert, "batch")
			require.NoError(t, tx.SendBatch(ctx, batch).Close())
			_, err = tx.Prepare(ctx, "insert", insert)
			require.NoError(t, err)
			_, err = tx.Exec(ctx, "insert", "prepared")
			require.NoError(t, err)
			objects := tx.LargeObjects()
			_, err = objects.Create(ctx, 0)
			require.NoError(t, err)
			rows, err := tx.Query(ctx, "SELECT message FROM "+table+" ORDER BY 1")
			require.NoError(t, err)
			found, err := pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			assert.Equal(t, []string{"1", "batch", "copied", "kept", "prepared"}, found)
			assert.Equal(t, byte('T'), tx.Conn().PgConn().TxStatus())
			return nil, nil
		})
		require.NoError(t, err)
		assert.Equal(t, 5, b.count("SELECT count(*) FROM "+table))
		_, err = tx.Exec(ctx, insert, "late")
		require.ErrorIs(t, err, pgx.ErrTxClosed)
		assert.Zero(t, b.effects("late"))
	})
}

func TestTxWithoutAnInbox(t *testing.T) {
	t.Parallel()
	assert.PanicsWithError(t, "the context has no transaction of this package's Inbox: add its Middleware to the "+
		"handler, after the retry middleware, and give Tx the context of the message", func() { inbox.Tx(t.Context()) })
	assert.Panics(t, func() { pgxinbox.Tx(t.Context()) })
	_, err := pgxinbox.New(nil, inbox.Config{Wait: -1}, nil)
	require.ErrorContains(t, err, "the pool is nil")
	require.ErrorContains(t, err, "Config.Wait")
}
