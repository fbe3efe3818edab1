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
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// inboxCalls is how many calls run at the same time.
const inboxCalls = 16

// measureInbox measures what an inbox costs beside a handler with a transaction of its own, without any Pub/Sub.
func measureInbox(ctx context.Context, r *run) error {
	server, err := r.start(ctx)
	if err != nil {
		return err
	}
	defer server.Stop()
	took, err := r.Compare(r.question+", seconds", 5, []string{string(withInbox), string(withTransaction)},
		func(i int) (float64, error) {
			return []bill{withInbox, withTransaction}[i].measure(server.URL, r.Size(20_000, 500), nil)
		})
	if err == nil {
		r.Ratio("backend_inbox_time", r.name, took[0], took[1])
	}
	return err
}

// A bill is a handler whose effect is one statement, with an inbox or with a transaction of its own.
type bill string

const (
	withInbox       bill = "inbox"
	withTransaction bill = "a transaction of its own"
)

// measure handles messages on new tables, and returns how long that took. The tracer may be nil.
func (b bill) measure(server string, messages int, tracer pgx.QueryTracer) (seconds float64, err error) {
	config, err := pgx.ParseConfig(server)
	if err != nil {
		return 0, err
	}
	config.Tracer = tracer
	db := stdlib.OpenDB(*config)
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(inboxCalls)
	db.SetMaxIdleConns(inboxCalls)
	for _, statement := range []string{
		"DROP TABLE IF EXISTS watermill_inbox, bench_accounts",
		"CREATE TABLE bench_accounts (customer int PRIMARY KEY, billed int NOT NULL)",
		"INSERT INTO bench_accounts SELECT n, 0 FROM generate_series(0, 999) n",
	} {
		if _, err := db.Exec(statement); err != nil {
			return 0, err
		}
	}
	handle, err := b.handler(db)
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

// effect is what the handler does in a transaction.
func effect(tx *sql.Tx, msg *message.Message) error {
	number, err := strconv.Atoi(msg.UUID)
	if err != nil {
		return err
	}
	const bills = "UPDATE bench_accounts SET billed = billed + 1 WHERE customer = $1"
	_, err = tx.ExecContext(msg.Context(), bills, number%1000)
	return err
}

// handler returns the handler of a side.
func (b bill) handler(db *sql.DB) (message.HandlerFunc, error) {
	if b == withInbox {
		box, err := inbox.New(db, inbox.Config{CreateTable: true}, nil)
		if err != nil {
			return nil, err
		}
		return box.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			return nil, effect(inbox.Tx(msg.Context()), msg)
		}), nil
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		tx, err := db.BeginTx(msg.Context(), nil)
		if err != nil {
			return nil, err
		}
		defer func() { _ = tx.Rollback() }()
		if err := effect(tx, msg); err != nil {
			return nil, err
		}
		return nil, tx.Commit()
	}, nil
}
