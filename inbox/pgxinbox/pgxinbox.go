// Package pgxinbox calls a handler once for each message, as package inbox does, in a transaction of pgx itself. What
// package inbox documents is the same here, and so is the table: the two may share it.
package pgxinbox

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	public "github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/internal/inbox"
)

// Inbox is the inbox of any number of handlers. It is safe for concurrent use, also by several processes. It needs no
// Close.
type Inbox struct{ engine *inbox.Inbox }

// New is New of package inbox. A handler takes one connection of the pool for each call: let MaxConns permit as many as
// the handlers have calls at the same time.
func New(pool *pgxpool.Pool, config public.Config, logger watermill.LoggerAdapter) (*Inbox, error) {
	if pool == nil {
		return nil, errors.Join(errors.New("the pool is nil: make it with pgxpool.New"), config.Validate())
	}
	engine, err := inbox.New(database{pool}, inbox.Config(config), logger)
	if err != nil {
		return nil, err
	}
	return &Inbox{engine}, nil
}

// Middleware is Middleware of package inbox.
func (b *Inbox) Middleware(h message.HandlerFunc) message.HandlerFunc { return b.engine.Middleware(h) }

// Tx returns the transaction of a handler, as Tx of package inbox does. It panics where there is no Inbox of this
// package. The end of the context ends the call of the handler's present statement, and the transaction is rolled back
// when the handler returns.
func Tx(ctx context.Context) pgx.Tx {
	tx, found := inbox.Handle(ctx).(pgx.Tx)
	if !found {
		panic(inbox.ErrNoTransaction)
	}
	return tx
}

// database is a DB of the engine.
type database struct{ pool *pgxpool.Pool }

func (d database) Begin(ctx context.Context) (inbox.Tx, any, error) {
	tx, err := d.pool.Begin(ctx)
	return transaction{tx}, tx, err
}

func (d database) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	return rows(d.pool.Exec(ctx, query, args...))
}

type transaction struct{ tx pgx.Tx }

func (t transaction) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	return rows(t.tx.Exec(ctx, query, args...))
}

func (t transaction) Bytes(ctx context.Context, query string, args ...any) (value []byte, err error) {
	err = t.tx.QueryRow(ctx, query, args...).Scan(&value)
	return value, err
}

func (t transaction) Commit(ctx context.Context) error { return t.tx.Commit(ctx) }

// rollbackTimeout bounds a rollback. Then pgx closes the connection, and the server rolls back.
const rollbackTimeout = 5 * time.Second

// Rollback implements Tx of the engine. The context of the message may have ended.
func (t transaction) Rollback() {
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	_ = t.tx.Rollback(ctx)
}

func rows(tag pgconn.CommandTag, err error) (int64, error) { return tag.RowsAffected(), err }
