package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/internal/msgbytes"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// A bill is a handler whose effect is one statement, with an inbox or with a transaction of its own. Where it produces,
// its message is kept in the row of the inbox, or in an outbox.
type bill struct {
	inbox, produces bool
}

func (b bill) String() string {
	name := "a transaction of its own"
	if b.inbox {
		name = "inbox"
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
	sides := []bill{{inbox: true}, {}, {inbox: true, produces: true}, {produces: true}}
	statements := make([]float64, len(sides))
	took, err := claims.Alternate(r.turns(5), len(sides), func(i int) (float64, error) {
		messages := r.size(20_000, 500)
		seconds, count, err := sides[i].measure(r.server, messages)
		statements[i] = float64(count) / float64(messages)
		return seconds, err
	})
	if err != nil {
		return err
	}
	for i, s := range sides {
		r.note("%s: %s seconds, %.2f statements a message", s, claims.Spread(took[i], "%.2f"), statements[i])
	}
	r.claim("backend_inbox_time", claims.Median(claims.Ratios(took[0], took[1])))
	r.claim("backend_inbox_time_produced", claims.Median(claims.Ratios(took[2], took[3])))
	more := max(statements[0]-statements[1], statements[2]-statements[3])
	r.claim("backend_inbox_statements", float64(int(more*100+0.5))/100)
	return nil
}

// statementCounter counts what pgx sends to the server, BEGIN and COMMIT included.
type statementCounter struct{ count atomic.Int64 }

func (s *statementCounter) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData,
) context.Context {
	s.count.Add(1)
	return ctx
}

func (*statementCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// measure handles messages on new tables, and returns how long that took and how many statements it needed.
func (b bill) measure(server string, messages int) (seconds float64, statements int64, err error) {
	config, err := pgx.ParseConfig(server)
	if err != nil {
		return 0, 0, err
	}
	var counter statementCounter
	config.Tracer = &counter
	db := stdlib.OpenDB(*config)
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
			return 0, 0, err
		}
	}
	box, err := inbox.New(db, inbox.Config{CreateTable: true}, nil)
	if err != nil {
		return 0, 0, err
	}
	handle := b.ownTransaction(db)
	if b.inbox {
		handle = box.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			return b.effect(inbox.Tx(msg.Context()), msg)
		})
	}
	if err := handleAll(handle, 0, inboxCalls*10); err != nil { // connections and statements are prepared
		return 0, 0, err
	}
	before, began := counter.count.Load(), time.Now()
	if err := handleAll(handle, inboxCalls*10, messages); err != nil {
		return 0, 0, err
	}
	seconds, statements = time.Since(began).Seconds(), counter.count.Load()-before
	var billed int
	if err := db.QueryRow("SELECT sum(billed) FROM bench_accounts").Scan(&billed); err != nil {
		return 0, 0, err
	}
	if want := messages + inboxCalls*10; billed != want {
		return 0, 0, fmt.Errorf("%s: %d effects of %d messages", b, billed, want)
	}
	return seconds, statements, nil
}

// handleAll handles messages whose numbers begin at first.
func handleAll(handle message.HandlerFunc, first, messages int) error {
	var next atomic.Int64
	var all sync.WaitGroup
	faults := make([]error, inboxCalls)
	for i := range faults {
		all.Go(func() {
			for faults[i] == nil {
				n := int(next.Add(1)) - 1
				if n >= messages {
					return
				}
				msg := message.NewMessage(strconv.Itoa(first+n), make([]byte, 512))
				_, faults[i] = handle(msg)
			}
		})
	}
	all.Wait()
	return errors.Join(faults...)
}

// effect is what the handler does in a transaction.
func (b bill) effect(tx *sql.Tx, msg *message.Message) (produced []*message.Message, err error) {
	number, err := strconv.Atoi(msg.UUID)
	if err != nil {
		return nil, err
	}
	if b.produces {
		produced = message.Messages{message.NewMessage("invoice "+msg.UUID, msg.Payload)}
	}
	_, err = tx.ExecContext(msg.Context(), "UPDATE bench_accounts SET billed = billed + 1 WHERE customer = $1",
		number%1000)
	return produced, err
}

// ownTransaction returns the handler by hand.
func (b bill) ownTransaction(db *sql.DB) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		tx, err := db.BeginTx(msg.Context(), nil)
		if err != nil {
			return nil, err
		}
		defer func() { _ = tx.Rollback() }()
		produced, err := b.effect(tx, msg)
		if err != nil {
			return nil, err
		}
		if len(produced) > 0 {
			if _, err := tx.ExecContext(msg.Context(), "INSERT INTO bench_outbox VALUES ($1, $2)", msg.UUID,
				msgbytes.EncodeAll(produced)); err != nil {
				return nil, err
			}
		}
		return produced, tx.Commit()
	}
}
