// Package inbox is the engine of package inbox. It knows the SQL of PostgreSQL, and no driver.
package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/msgbytes"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/warning"
	"github.com/tieredretry/watermill-retry/letters"
)

// DB is a database as a driver has it. It is safe for concurrent use.
type DB interface {
	// Begin begins a transaction with its first statement, and returns the only value of its only row, or "" without a
	// row. It calls begun when the database has a connection for it. The handler gets handle. The end of the context may
	// roll the transaction back.
	Begin(ctx context.Context, begun func(), query string, args ...any) (tx Tx, handle any, value string, err error)

	// Exec executes statements outside of a transaction.
	Exec(ctx context.Context, query string) error

	// CheckDriver refuses a driver that the pooler before the server does not fit.
	CheckDriver(ctx context.Context) error

	// Int executes a statement outside of a transaction, and returns the only value of its only row.
	Int(ctx context.Context, query string, args ...any) (int64, error)
}

// Tx is a transaction.
type Tx interface {
	// Stored returns the two values of the only row.
	Stored(ctx context.Context, query string, args ...any) (produced []byte, ended bool, err error)

	// Commit commits after a last statement, which may be empty, and changes one row. It returns ErrEnded where the
	// handler has ended the transaction.
	Commit(ctx context.Context, query string, args ...any) error

	// Rollback does nothing after Commit. It returns ErrEnded where the handler may have committed, and another error
	// where the connection is lost.
	Rollback() error
}

const (
	// openTimeout bounds what New does in the database.
	openTimeout = 30 * time.Second

	// sweepInterval is the longest time between two deletions.
	sweepInterval = time.Minute

	// sweepsPerRetention is how often the whole table is looked at in the time of the retention: rows stay longer than
	// that by an eighth at most.
	sweepsPerRetention = 8

	// failureTimeout bounds what is found out, and noted, about a transaction that has failed.
	failureTimeout = 5 * time.Second

	// sweepTimeout bounds a deletion, which a message waits for.
	sweepTimeout = 10 * time.Second
)

// Inbox calls a handler once for each message. It is safe for concurrent use.
type Inbox struct {
	db     DB
	config Config
	sql    statements
	logger watermill.LoggerAdapter
	due    atomic.Int64 // when the next deletion is due, in Unix nanoseconds
	slice  atomic.Int64 // number of the slice of the table that it looks at
}

// New looks whether the table is there, and makes it where the app has asked for that.
func New(db DB, config Config, logger watermill.LoggerAdapter) (*Inbox, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	b := &Inbox{db: db, config: config, sql: statementsOf(config.Table), logger: logger}
	b.slice.Store(rand.Int64N(1 << 32)) // so that each process looks at other rows first
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	if err := db.CheckDriver(ctx); err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	err := b.look(ctx)
	if err != nil && config.CreateTable {
		if err := db.Exec(ctx, b.sql.create); err != nil {
			return nil, fmt.Errorf("inbox: cannot create the table %s: %w", config.Table, err)
		}
		err = b.look(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: cannot read the table %s in a transaction. If it does not exist, or has other "+
			"columns, apply Schema, or set CreateTable: %w", config.Table, err)
	}
	return b, nil
}

// look looks at the table in a transaction, which not every pooler lets a client have.
func (b *Inbox) look(ctx context.Context) error {
	tx, _, _, err := b.db.Begin(ctx, func() {}, b.sql.look)
	if err != nil {
		return err
	}
	return tx.Rollback()
}

type handleKey struct{}

// Handle returns the transaction of a handler's context, as its driver has it; nil: there is none.
func Handle(ctx context.Context) any { return ctx.Value(handleKey{}) }

// ErrNoTransaction is the panic of a handler that asks for a transaction that its context does not have.
var ErrNoTransaction = errors.New("the context has no transaction of this package's Inbox: add its Middleware to the " +
	"handler, after the retry middleware, and give Tx the context of the message")

var (
	errOutside = errors.New("inbox: the retry middleware is not outside of the inbox, so a retry would not be seen. " +
		"Add the retry middleware first: router.AddMiddleware(rabbit.Middleware, box.Middleware)")
	errNested = errors.New("inbox: the handler has an inbox twice: add its middleware once, to the handler or to the " +
		"router")
	errNoConnection = errors.New("the database does not answer, or all connections of its pool are in use: let the " +
		"pool have as many as the handlers have calls at the same time")
	// ErrEnded is returned by a Tx that the handler has ended.
	ErrEnded = errors.New("the handler has ended the transaction of the inbox: it must neither commit it nor roll it " +
		"back. Nothing that it has produced is published")

	errNotEnded = errors.New("inbox: the handler has committed the transaction of the inbox at an earlier delivery, and " +
		"has not succeeded then: its effects are there, what it had produced is not. It is not called again. Let it not " +
		"commit, and redrive the message with the option Again")
	errNUL = errors.New("inbox: the UUID of the message has a NUL, which PostgreSQL cannot store: let its publisher set " +
		"another one, or use no inbox for this handler")
	errNoID = errors.New("inbox: the message has no UUID, so a second delivery could not be known: let its publisher " +
		"set one, or use no inbox for this handler")
)

// key is what no two handled messages have in common.
type key struct{ consumer, id, redrive string }

func (k key) fields(more watermill.LogFields) watermill.LogFields {
	return more.Add(watermill.LogFields{"message_uuid": k.id, "consumer": k.consumer})
}

func (k key) args(more ...any) []any { return append([]any{k.consumer, k.id, k.redrive}, more...) }

// keyOf returns the key of a message. Its consumer is its queue, which the handlers of a group share, and which stays
// when a handler is renamed. A message that a handler passes on keeps its UUID, so without a queue, as in the test kit,
// the consumer is the handler and the topic. A redrive that asks for the handler makes another message of it.
func keyOf(msg *message.Message, own *msgctx.Delivery) key {
	history, _ := letters.ReadRedriven(msg.Metadata)
	k := key{id: msg.UUID, redrive: history.Again}
	if own != nil {
		k.consumer = own.Subscription.Queue
	} else {
		k.consumer = msgctx.QueueOf(msg)
	}
	if k.consumer != "" {
		return k
	}
	ctx := msg.Context()
	topic, handler := message.SubscribeTopicFromCtx(ctx), message.HandlerNameFromCtx(ctx)
	if from, found := msgctx.OriginOf(ctx); found {
		topic, handler = from.Topic, from.Handler
	}
	k.consumer = fmt.Sprintf("%s of %s", handler, topic)
	return k
}

// Middleware calls the handler with a transaction in the message's context, unless the message was handled before.
func (b *Inbox) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		own := msgctx.Lookup(msg)
		switch {
		case own != nil && !own.Inside(), msg.Metadata[msgctx.BuilderKey] != "":
			return nil, errOutside
		case Handle(msg.Context()) != nil:
			return nil, backoff.Permanent(errNested)
		case msg.UUID == "":
			return nil, backoff.Permanent(errNoID)
		case strings.IndexByte(msg.UUID, 0) >= 0:
			return nil, backoff.Permanent(errNUL)
		}
		return b.handle(h, msg, own)
	}
}

func (b *Inbox) handle(
	h message.HandlerFunc, msg *message.Message, own *msgctx.Delivery,
) (produced []*message.Message, err error) {
	ctx, k := msg.Context(), keyOf(msg, own)
	held, release := context.WithCancelCause(ctx)
	defer release(nil) // after the end of the transaction, which a driver may roll back with its context
	began, publishes := time.Now(), message.PublishTopicFromCtx(ctx) != ""
	tx, handle, writer, err := b.begin(held, release, k, publishes)
	if err != nil {
		return nil, err
	}
	if writer == "" {
		defer func() { _ = tx.Rollback() }()
		return b.repeat(ctx, tx, k, msg, own)
	}
	committed, commit := false, error(nil)
	defer func() { // also where the handler panics or ends its goroutine
		if !committed {
			err = b.failure(held, cmp.Or(commit, tx.Rollback()), k, writer, began, err)
		}
	}()
	b.warnUnprotected(msg, k)
	poison := beforePoison(msg)
	produced, err = call(h, msg, handle)
	switch {
	case err != nil:
		return nil, err
	case slices.Contains(produced, nil):
		return nil, panics.ErrNilMessage
	case nacked(msg): // it comes again, to be handled
		return produced, nil
	case poison.taken(msg): // the effects, and what was produced, are those of a failed call
		return nil, nil
	}
	var store string
	var args []any
	switch {
	case len(produced) > 0:
		store, args = b.sql.store, k.args(msgbytes.EncodeAll(produced))
	case publishes:
		store, args = b.sql.store, k.args([]byte(nil))
	}
	switch commit = tx.Commit(ctx, store, args...); {
	case commit == nil:
	case errors.Is(commit, ErrEnded) && held.Err() == nil:
		return nil, backoff.Permanent(fmt.Errorf("inbox: %w", commit))
	default:
		return nil, fmt.Errorf("inbox: cannot store what the handler has produced, and commit: %w", commit)
	}
	committed = true
	b.sweep(ctx)
	return produced, nil
}

// begin begins a transaction with the row of a message, and returns the number that the database has for the writer of
// the row, or "" where there is one already. While another delivery of the message is handled, the database makes it
// wait. It ends the context where one of the two takes too long.
func (b *Inbox) begin(
	ctx context.Context, end context.CancelCauseFunc, k key, publishes bool,
) (tx Tx, handle any, writer string, err error) {
	var begun atomic.Bool
	late := time.AfterFunc(b.config.Wait, func() {
		if begun.Load() {
			end(msgctx.ErrFirstRuns)
		} else {
			end(errNoConnection)
		}
	})
	tx, handle, writer, err = b.db.Begin(ctx, func() {
		if late.Stop() {
			begun.Store(true)
			late.Reset(b.config.Wait)
		}
	}, b.sql.insert, k.args(publishes)...)
	if !late.Stop() && err == nil {
		<-ctx.Done()
		_ = tx.Rollback()
		err = context.Cause(ctx)
	}
	switch cause := context.Cause(ctx); {
	case err == nil:
		return tx, handle, writer, nil
	case cause == errNoConnection:
		err = fmt.Errorf("inbox: cannot begin a transaction within %v: %w", b.config.Wait, errNoConnection)
	case cause == msgctx.ErrFirstRuns:
		err = fmt.Errorf("inbox: no answer of the database within %v: %w", b.config.Wait, msgctx.ErrFirstRuns)
	case !begun.Load():
		err = fmt.Errorf("inbox: cannot begin a transaction: %w", err)
	case cause == nil && waitEnded(err):
		err = fmt.Errorf("inbox: the server has ended the wait for the database, of %v at most: %w: %w", b.config.Wait,
			msgctx.ErrFirstRuns, err)
	case notStorable(err):
		err = backoff.Permanent(fmt.Errorf("inbox: the database cannot store the UUID of the message, which has %d bytes: "+
			"let its publisher set another one, or use no inbox for this handler: %w", len(k.id), err))
	default:
		err = fmt.Errorf("inbox: cannot write to the table %s: %w", b.config.Table, err)
	}
	return nil, nil, "", err
}

// failure returns the failure of a message with what is known of its transaction, whose end has returned an error.
func (b *Inbox) failure(
	ctx context.Context, end error, k key, writer string, began time.Time, failure error,
) error {
	if end == nil || ctx.Err() != nil {
		return failure
	}
	ctx, cancel := context.WithTimeout(ctx, failureTimeout)
	defer cancel()
	switch {
	case errors.Is(end, ErrEnded):
		// The retry must not take the row for that of a success. None is there where the handler has rolled back.
		if _, err := b.db.Int(ctx, b.sql.mark, k.args(writer)...); err != nil {
			b.logger.Error("The handler has ended the transaction of the inbox by itself and has not succeeded, and this "+
				"cannot be noted: if it has committed, its next delivery is taken for a duplicate", err, k.fields(nil))
		}
		return failure
	case !connectionLost(end):
		return failure
	}
	took := time.Since(began)
	milliseconds, _ := b.db.Int(ctx, b.sql.limit)
	if limit := time.Duration(milliseconds) * time.Millisecond; failure != nil && 0 < limit && limit <= took {
		return fmt.Errorf("inbox: the connection of the transaction is lost after %v: the server ends a transaction after "+
			"%v (idle_in_transaction_session_timeout or transaction_timeout of the role). Let the setting be longer than "+
			"the handler takes: %w", took.Round(time.Millisecond), limit, failure)
	}
	return failure
}

// repeat returns what the handler had produced.
func (b *Inbox) repeat(
	ctx context.Context, tx Tx, k key, msg *message.Message, own *msgctx.Delivery,
) ([]*message.Message, error) {
	stored, ended, err := tx.Stored(ctx, b.sql.read, k.args()...)
	switch {
	case err != nil:
		return nil, fmt.Errorf("inbox: cannot read what the handler had produced: %w", err)
	case !ended:
		return nil, backoff.Permanent(errNotEnded)
	}
	produced, err := msgbytes.DecodeAll(string(stored))
	if err != nil {
		return nil, fmt.Errorf("inbox: cannot read what the handler had produced: %w", err)
	}
	if own != nil {
		own.Repeat()
	}
	fields := k.fields(watermill.LogFields{"produced": len(produced)})
	if history, redriven := letters.ReadRedriven(msg.Metadata); redriven {
		warning.Log(b.logger, "A redriven message was handled before: its handler is not called, and what it had "+
			"produced is published again. To handle it once more, publish it with another UUID, or redrive its letters "+
			"with the option Again", fields.Add(watermill.LogFields{"redriven": history.Times}))
		return produced, nil
	}
	b.logger.Info("The message was handled before: its handler is not called, and what it had produced is published "+
		"again", fields)
	return produced, nil
}

// warnUnprotected warns of a redriven message that may have been handled before the oldest row.
func (b *Inbox) warnUnprotected(msg *message.Message, k key) {
	history, _ := letters.ReadRedriven(msg.Metadata)
	for _, redrive := range history.Redrives {
		if failed := redrive.FailedAt; !failed.IsZero() && time.Since(failed) > b.config.Retention {
			warning.Log(b.logger, "A redriven message failed first before the retention of the inbox began: whether it "+
				"was handled before is not known, its handler is called",
				k.fields(watermill.LogFields{"failed_at": failed, "retention": b.config.Retention}))
			return
		}
	}
}

// poisoned is the mark of Watermill's PoisonQueue that a message had before its handler was called.
type poisoned struct {
	reason string
	found  bool
}

// beforePoison gives the mark bytes of its own: a message of a poison queue can fail with the same text once more.
func beforePoison(msg *message.Message) (p poisoned) {
	if p.reason, p.found = msg.Metadata[middleware.ReasonForPoisonedKey]; p.found {
		p.reason = strings.Clone(p.reason)
		msg.Metadata[middleware.ReasonForPoisonedKey] = p.reason
	}
	return p
}

// taken reports whether a PoisonQueue inside has marked the message, and so has hidden the error of the handler.
func (p poisoned) taken(msg *message.Message) bool {
	reason, found := msg.Metadata[middleware.ReasonForPoisonedKey]
	return found && (!p.found || reason != p.reason || unsafe.StringData(reason) != unsafe.StringData(p.reason))
}

// call calls the handler with the transaction in the message's context. The subscriber may read the context of a
// message that is settled.
func call(h message.HandlerFunc, msg *message.Message, handle any) ([]*message.Message, error) {
	ctx := msg.Context()
	msg.SetContext(context.WithValue(ctx, handleKey{}, handle))
	defer func() {
		if !nacked(msg) && !acked(msg) {
			msg.SetContext(ctx)
		}
	}()
	return h(msg)
}

func acked(msg *message.Message) bool  { return isClosed(msg.Acked()) }
func nacked(msg *message.Message) bool { return isClosed(msg.Nacked()) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// sweep deletes old rows of the next slice of the table, when that is due. The messages do it: there is nothing that an
// app has to end, and nothing to delete where there are none.
func (b *Inbox) sweep(ctx context.Context) {
	now, due := time.Now(), b.due.Load()
	if now.UnixNano() < due || !b.due.CompareAndSwap(due, now.Add(sweepInterval).UnixNano()) {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	slices, err := b.db.Int(bounded, b.sql.sweep, b.config.Retention.Seconds(), b.slice.Add(1))
	switch {
	case err == nil:
		pause := b.config.Retention / sweepsPerRetention / time.Duration(max(slices, 1))
		b.due.Store(now.Add(min(pause, sweepInterval)).UnixNano())
	case ctx.Err() == nil: // no line for a shutdown
		b.logger.Error("Cannot delete old rows of the inbox, they stay", err,
			watermill.LogFields{"table": b.config.Table})
	}
}
