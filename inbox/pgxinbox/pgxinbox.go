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
	"github.com/jackc/pgx/v5/pgxpool"

	public "github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/internal/inbox"
	"github.com/tieredretry/watermill-retry/internal/pooler"
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

func (d database) Begin(
	ctx context.Context, begun func(), query string, args ...any,
) (_ inbox.Tx, _ any, value string, err error) {
	pooled, err := d.pool.Acquire(ctx)
	if err != nil {
		return nil, nil, "", err
	}
	begun()
	t := &tx{pooled: pooled, conn: pooled.Conn()}
	batch := &pgx.Batch{}
	batch.Queue("begin")
	batch.Queue(query, args...)
	results := t.conn.SendBatch(ctx, batch)
	_, err = results.Exec()
	if err == nil {
		err = results.QueryRow().Scan(&value)
	}
	if closed := results.Close(); err == nil || errors.Is(err, pgx.ErrNoRows) {
		err = closed
	}
	if err != nil {
		_ = transaction{t}.Rollback()
		return nil, nil, "", err
	}
	return transaction{t}, t, value, nil
}

func (d database) Exec(ctx context.Context, query string) error {
	_, err := d.pool.Exec(ctx, query)
	return err
}

func (d database) CheckDriver(ctx context.Context) error {
	return pooler.Check(ctx, d.pool.Config().MaxConns == 1, func(ctx context.Context) (pooler.Session, error) {
		conn, err := d.pool.Acquire(ctx)
		return session{conn}, err
	})
}

type session struct{ conn *pgxpool.Conn }

func (s session) Scan(ctx context.Context, query, arg string, into ...any) error {
	return s.conn.QueryRow(ctx, query, arg).Scan(into...)
}

func (s session) Close() { s.conn.Release() }

func (d database) Int(ctx context.Context, query string, args ...any) (value int64, err error) {
	err = d.pool.QueryRow(ctx, query, args...).Scan(&value)
	return value, err
}

// transaction is a Tx of the engine. It ends with its connection in the pool.
type transaction struct{ tx *tx }

func (t transaction) Stored(
	ctx context.Context, query string, args ...any,
) (produced []byte, ended bool, err error) {
	err = t.tx.QueryRow(ctx, query, args...).Scan(&produced, &ended)
	return produced, ended, err
}

func (t transaction) Commit(ctx context.Context, query string, args ...any) error {
	if t.tx.closed || t.tx.outside() {
		return inbox.ErrEnded
	}
	batch := &pgx.Batch{}
	if query != "" {
		batch.Queue(query, args...)
	}
	batch.Queue("commit")
	tag, err := t.tx.exec(ctx, batch)
	switch {
	case err != nil:
		return err
	case tag.String() == "ROLLBACK": // a statement of the handler has failed, and its error was hidden
		err = pgx.ErrTxCommitRollback
	}
	t.tx.end()
	return err
}

// rollbackTimeout bounds a rollback. Then pgx closes the connection, and the server rolls back.
const rollbackTimeout = 5 * time.Second

// Rollback implements Tx of the engine. The context of the message may have ended.
func (t transaction) Rollback() (err error) {
	defer t.tx.end()
	switch {
	case t.tx.outside():
		return inbox.ErrEnded
	case t.tx.closed:
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	return t.tx.Rollback(ctx)
}
