package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/inbox/pgxinbox"
	"github.com/tieredretry/watermill-retry/internal/msgbytes"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// A bill is a handler whose effect is one statement, with an inbox or with a transaction of its own. Where it produces,
// its message is kept in the row of the inbox, or in an outbox.
type bill struct {
	inbox, produces bool
	pgx             bool // a pool of pgx in place of database/sql
}

func (b bill) String() string {
	name := "a transaction of its own"
	if b.inbox {
		name = "inbox"
	}
	if b.pgx {
		name = "pgx, " + name
	}
	if b.produces {
		name += ", produces"
	}
	return name
}

// inboxCalls is how many calls run at the same time.
const inboxCalls = 16

// measureInbox measures what an inbox costs beside a handler with a transaction of its own, without any Pub/Sub.
func measureInbox(r *run) error {
	var sides []bill
	for _, pgx := range []bool{false, true} {
		for _, produces := range []bool{false, true} {
			sides = append(sides, bill{true, produces, pgx}, bill{false, produces, pgx})
		}
	}
	took, err := claims.Alternate(r.Turns(5), len(sides), func(i int) (float64, error) {
		return sides[i].measure(r.server, r.Size(20_000, 500), nil)
	})
	if err != nil {
		return err
	}
	for i, s := range sides {
		r.note("%s: %s seconds", s, claims.Spread(took[i], "%.2f"))
	}
	for i, name := range []string{
		"backend_inbox_time", "backend_inbox_time_produced", "backend_inbox_pgx_time", "backend_inbox_pgx_time_produced",
	} {
		r.ratio(name, took[2*i], took[2*i+1])
	}
	return nil
}

// measure handles messages on new tables, and returns how long that took. The tracer may be nil.
func (b bill) measure(server string, messages int, tracer pgx.QueryTracer) (seconds float64, err error) {
	config, err := pgxpool.ParseConfig(server)
	if err != nil {
		return 0, err
	}
	config.ConnConfig.Tracer = tracer
	config.MaxConns = inboxCalls
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	db := stdlib.OpenDB(*config.ConnConfig)
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(inboxCalls)
	db.SetMaxIdleConns(inboxCalls)
	for _, statement := range []string{
		"DROP TABLE IF EXISTS watermill_inbox, bench_outbox, bench_accounts",
		"CREATE TABLE bench_outbox (message_id text PRIMARY KEY, produced bytea NOT NULL)",
		"CREATE TABLE bench_accounts (customer int PRIMARY KEY, billed int NOT NULL)",
		"INSERT INTO bench_accounts SELECT n, 0 FROM generate_series(0, 999) n",
	} {
		if _, err := db.Exec(statement); err != nil {
			return 0, err
		}
	}
	handle, err := b.handler(db, pool)
	if err != nil {
		return 0, err
	}
	if err := handleAll(handle, 0, inboxCalls*10); err != nil { // connections and statements are prepared
		return 0, err
	}
	began := time.Now()
	if err := handleAll(handle, inboxCalls*10, messages); err != nil {
		return 0, err
	}
	seconds = time.Since(began).Seconds()
	var billed int
	if err := db.QueryRow("SELECT sum(billed) FROM bench_accounts").Scan(&billed); err != nil {
		return 0, err
	}
	if want := messages + inboxCalls*10; billed != want {
		return 0, fmt.Errorf("%s: %d effects of %d messages", b, billed, want)
	}
	return seconds, nil
}

// handleAll handles messages whose numbers begin at first.
func handleAll(handle message.HandlerFunc, first, messages int) error {
	var next atomic.Int64
	return claims.Together(inboxCalls, func(int) (err error) {
		for n := int(next.Add(1)) - 1; n < messages && err == nil; n = int(next.Add(1)) - 1 {
			ctx, cancel := context.WithCancel(context.Background()) // as subscribers have it
			_, err = handle(message.NewMessageWithContext(ctx, strconv.Itoa(first+n), make([]byte, 512)))
			cancel()
		}
		return err
	})
}

// execute executes a statement in a transaction.
type execute func(ctx context.Context, query string, args ...any) error

// effect is what the handler does in a transaction.
func (b bill) effect(tx execute, msg *message.Message) (produced []*message.Message, err error) {
	number, err := strconv.Atoi(msg.UUID)
	if err != nil {
		return nil, err
	}
	if b.produces {
		produced = message.Messages{message.NewMessage("invoice "+msg.UUID, msg.Payload)}
	}
	return produced, tx(msg.Context(), "UPDATE bench_accounts SET billed = billed + 1 WHERE customer = $1", number%1000)
}

// handler returns the handler of a side.
func (b bill) handler(db *sql.DB, pool *pgxpool.Pool) (message.HandlerFunc, error) {
	ofSQL := func(tx *sql.Tx) execute {
		return func(ctx context.Context, query string, args ...any) error {
			_, err := tx.ExecContext(ctx, query, args...)
			return err
		}
	}
	ofPgx := func(tx pgx.Tx) execute {
		return func(ctx context.Context, query string, args ...any) error {
			_, err := tx.Exec(ctx, query, args...)
			return err
		}
	}
	switch {
	case b.inbox && b.pgx:
		box, err := pgxinbox.New(pool, inbox.Config{CreateTable: true}, nil)
		if err != nil {
			return nil, err
		}
		return box.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			return b.effect(ofPgx(pgxinbox.Tx(msg.Context())), msg)
		}), nil
	case b.inbox:
		box, err := inbox.New(db, inbox.Config{CreateTable: true}, nil)
		if err != nil {
			return nil, err
		}
		return box.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			return b.effect(ofSQL(inbox.Tx(msg.Context())), msg)
		}), nil
	case b.pgx:
		return func(msg *message.Message) ([]*message.Message, error) {
			tx, err := pool.Begin(msg.Context())
			if err != nil {
				return nil, err
			}
			defer func() { _ = tx.Rollback(msg.Context()) }()
			produced, err := b.byHand(ofPgx(tx), msg)
			if err != nil {
				return nil, err
			}
			return produced, tx.Commit(msg.Context())
		}, nil
	default:
		return func(msg *message.Message) ([]*message.Message, error) {
			tx, err := db.BeginTx(msg.Context(), nil)
			if err != nil {
				return nil, err
			}
			defer func() { _ = tx.Rollback() }()
			produced, err := b.byHand(ofSQL(tx), msg)
			if err != nil {
				return nil, err
			}
			return produced, tx.Commit()
		}, nil
	}
}

// byHand has the effect, and stores what is produced in an outbox.
func (b bill) byHand(tx execute, msg *message.Message) ([]*message.Message, error) {
	produced, err := b.effect(tx, msg)
	if err != nil || len(produced) == 0 {
		return produced, err
	}
	return produced, tx(msg.Context(), "INSERT INTO bench_outbox VALUES ($1, $2)", msg.UUID,
		msgbytes.EncodeAll(produced))
}
