package pgxinbox

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tieredretry/watermill-retry/internal/inbox"
)

// tx is the transaction of a handler. It begins in one round trip with the first statement of the inbox, and commits in
// one with the last, which pgx's own cannot do.
type tx struct {
	pooled *pgxpool.Conn
	conn   *pgx.Conn // pooled.Conn()
	closed bool      // rolled back, or committed by the inbox

	// Tx is pgx's, on the same transaction, for savepoints and large objects. Nil: not needed yet. It is embedded because
	// a later pgx can add methods to the interface: an app with that pgx must compile.
	pgx.Tx
}

// exec executes statements in one round trip, and returns the result of the last one.
func (t *tx) exec(ctx context.Context, batch *pgx.Batch) (tag pgconn.CommandTag, err error) {
	results := t.conn.SendBatch(ctx, batch)
	for range batch.Len() {
		if tag, err = results.Exec(); err != nil {
			_ = results.Close()
			return tag, err
		}
	}
	return tag, results.Close()
}

// outside reports whether the handler has ended the transaction by a statement.
func (t *tx) outside() bool {
	return !t.closed && !t.conn.IsClosed() && t.conn.PgConn().TxStatus() == 'I'
}

// end gives the connection back. The pool closes it where it is not as before.
func (t *tx) end() {
	t.closed = true
	t.pooled.Release()
}

// pgxTx returns pgx's own transaction. Pgx begins it with an empty statement.
func (t *tx) pgxTx(ctx context.Context) (_ pgx.Tx, err error) {
	switch {
	case t.closed:
		return nil, pgx.ErrTxClosed
	case t.Tx == nil:
		t.Tx, err = t.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: ";"})
	}
	return t.Tx, err
}

// Begin implements pgx.Tx with a savepoint.
func (t *tx) Begin(ctx context.Context) (pgx.Tx, error) {
	own, err := t.pgxTx(ctx)
	if err != nil {
		return nil, err
	}
	return own.Begin(ctx)
}

// LargeObjects implements pgx.Tx.
func (t *tx) LargeObjects() pgx.LargeObjects {
	own, err := t.pgxTx(context.Background())
	if err != nil {
		return pgx.LargeObjects{}
	}
	return own.LargeObjects()
}

// Commit implements pgx.Tx. A handler must not call it: it rolls back, and the inbox fails the message.
func (t *tx) Commit(ctx context.Context) error {
	if err := t.Rollback(ctx); err != nil {
		return err
	}
	return inbox.ErrEnded
}

// Rollback implements pgx.Tx. A handler must not call it: the inbox fails the message.
func (t *tx) Rollback(ctx context.Context) error {
	if t.closed {
		return pgx.ErrTxClosed
	}
	t.closed = true
	_, err := t.conn.Exec(ctx, "rollback")
	return err
}

// Exec implements pgx.Tx.
func (t *tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if t.closed {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	return t.conn.Exec(ctx, sql, args...)
}

// Query implements pgx.Tx.
func (t *tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.closed {
		return closedRows{}, pgx.ErrTxClosed
	}
	return t.conn.Query(ctx, sql, args...)
}

// QueryRow implements pgx.Tx.
func (t *tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.closed {
		return closedRows{}
	}
	return t.conn.QueryRow(ctx, sql, args...)
}

// SendBatch implements pgx.Tx.
func (t *tx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	if t.closed {
		return closedBatch{}
	}
	return t.conn.SendBatch(ctx, batch)
}

// CopyFrom implements pgx.Tx.
func (t *tx) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource,
) (int64, error) {
	if t.closed {
		return 0, pgx.ErrTxClosed
	}
	return t.conn.CopyFrom(ctx, table, columns, rows)
}

// Prepare implements pgx.Tx.
func (t *tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if t.closed {
		return nil, pgx.ErrTxClosed
	}
	return t.conn.Prepare(ctx, name, sql)
}

// Conn implements pgx.Tx.
func (t *tx) Conn() *pgx.Conn { return t.conn }

// closedRows are those of a transaction that has ended.
type closedRows struct{ pgx.Rows }

func (closedRows) Close()                                       {}
func (closedRows) Err() error                                   { return pgx.ErrTxClosed }
func (closedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (closedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (closedRows) Next() bool                                   { return false }
func (closedRows) Scan(...any) error                            { return pgx.ErrTxClosed }
func (closedRows) Values() ([]any, error)                       { return nil, pgx.ErrTxClosed }
func (closedRows) RawValues() [][]byte                          { return nil }
func (closedRows) Conn() *pgx.Conn                              { return nil }
func (closedRows) TypeMap() *pgtype.Map                         { return nil } // from pgx 5.12 on

type closedBatch struct{ pgx.BatchResults }

func (closedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, pgx.ErrTxClosed }
func (closedBatch) Query() (pgx.Rows, error)         { return closedRows{}, pgx.ErrTxClosed }
func (closedBatch) QueryRow() pgx.Row                { return closedRows{} }
func (closedBatch) Close() error                     { return pgx.ErrTxClosed }
func (closedBatch) Tx() pgx.Tx                       { return nil } // from pgx 5.12 on
