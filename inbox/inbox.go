package inbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/inbox"
	"github.com/tieredretry/watermill-retry/internal/pooler"
)

// Config configures an Inbox. The zero value is ready for use, where the table exists.
type Config struct {
	// Table is the table, with or without a schema: a-z, 0-9, underscores and one dot, at most 50 bytes. The default is
	// watermill_inbox. Handlers may share it, and services on one broker.
	Table string

	// CreateTable makes New create the table where it does not exist. The default is that it must exist: apply Schema.
	CreateTable bool

	// Retention is how long a message is known after it was handled, by the clock of the database: at least 2 minutes.
	// Make it longer than the longest way of a message: all delays of its schedule, or MaxAge, and the time until an
	// operator redrives its dead letter. The default is 7 days. Rows that are older are deleted while messages are
	// handled: a message looks at 16 blocks of the table at most, and the whole table is looked at eight times in this
	// time.
	Retention time.Duration

	// Wait is how long a delivery waits for a transaction, and for the end of another delivery of the same message. After
	// the first wait it has failed. After the second, also where the server ends it earlier, as lock_timeout does, it is
	// snoozed for the shortest tier. The default is 10 seconds.
	Wait time.Duration
}

// Validate reports all faults, joined.
func (c Config) Validate() error { return inbox.Config(c).Validate() }

// Schema returns the SQL that creates the table where it does not exist. An empty name is that of the
// default table. A wrong name is an error of New.
func Schema(table string) string { return inbox.Schema(table) }

// Inbox is the inbox of any number of handlers. It is safe for concurrent use, also by several processes. It needs no
// Close.
type Inbox struct{ engine *inbox.Inbox }

// New makes an Inbox, and looks at the table, for at most 30 seconds. It returns an error where a field is wrong, the
// database does not answer, or the table does not exist and CreateTable is not set. A nil logger logs nothing.
//
// The database must be PostgreSQL 14 or later, with any driver. Behind a pooler that gives each transaction another
// session, New refuses a driver that needs more than one round trip for a statement, unless two connections of db are
// not free within 5 seconds. A handler takes one connection of db for each call: let db.SetMaxOpenConns permit as many
// as the handlers have calls at the same time.
func New(db *sql.DB, config Config, logger watermill.LoggerAdapter) (*Inbox, error) {
	if db == nil {
		return nil, errors.Join(errors.New("the database is nil: open it with sql.Open"), config.Validate())
	}
	engine, err := inbox.New(database{db}, inbox.Config(config), logger)
	if err != nil {
		return nil, err
	}
	return &Inbox{engine}, nil
}

// Middleware is the middleware, for a handler's or a router's AddMiddleware. Add it after the retry middleware: where
// that can be seen, another order is an error for every message, which the router logs. A middleware that is added
// after it runs within the transaction.
//
// The handler must neither commit the transaction nor roll it back: it fails, and its message is a dead letter. It may
// be called again after an error of the database, also where that error is one of the commit.
func (b *Inbox) Middleware(h message.HandlerFunc) message.HandlerFunc { return b.engine.Middleware(h) }

// Tx returns the transaction of a handler. ctx is the context of its message, or the one that a handler of
// components/cqrs gets. The transaction ends when the handler returns, and is rolled back when the context ends. Tx
// panics where there is no Inbox: that is a failure of the message, with a text that states what is missing.
func Tx(ctx context.Context) *sql.Tx {
	tx, found := inbox.Handle(ctx).(*sql.Tx)
	if !found {
		panic(inbox.ErrNoTransaction)
	}
	return tx
}

// database is a DB of the engine.
type database struct{ db *sql.DB }

func (d database) Begin(
	ctx context.Context, begun func(), query string, args ...any,
) (_ inbox.Tx, _ any, value string, err error) {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, nil, "", err
	}
	begun()
	err = tx.QueryRowContext(ctx, query, args...).Scan(&value)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		_ = tx.Rollback()
		return nil, nil, "", err
	}
	return transaction{tx}, tx, value, nil
}

func (d database) Exec(ctx context.Context, query string) error {
	_, err := d.db.ExecContext(ctx, query)
	return err
}

func (d database) CheckDriver(ctx context.Context) error { return pooler.CheckDB(ctx, d.db) }

func (d database) Int(ctx context.Context, query string, args ...any) (value int64, err error) {
	err = d.db.QueryRowContext(ctx, query, args...).Scan(&value)
	return value, err
}

type transaction struct{ tx *sql.Tx }

func (t transaction) Stored(
	ctx context.Context, query string, args ...any,
) (produced []byte, ended bool, err error) {
	err = t.tx.QueryRowContext(ctx, query, args...).Scan(&produced, &ended)
	return produced, ended, err
}

func (t transaction) Commit(ctx context.Context, query string, args ...any) error {
	if query != "" {
		result, err := t.tx.ExecContext(ctx, query, args...)
		if err != nil {
			return orEnded(err)
		}
		if rows, err := result.RowsAffected(); err != nil || rows != 1 {
			return cmp.Or(err, inbox.ErrEnded) // by a statement
		}
	}
	return orEnded(t.tx.Commit())
}

func (t transaction) Rollback() error { return orEnded(t.tx.Rollback()) }

// orEnded returns the engine's error for that of a transaction that has ended.
func orEnded(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return inbox.ErrEnded
	}
	return err
}
