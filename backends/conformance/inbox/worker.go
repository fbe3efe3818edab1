package main

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver of the database

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/child"
)

// duplicated is a line that a worker writes to stdout.
const duplicated = "duplicated"

// worker is a process with the handler: it bills orders, and produces an invoice for each.
type worker struct {
	Backend, URL, Database string
	Name                   string // the name of the run: a part of all names
}

// roles are those of the processes of a run.
var roles = map[string]child.Role{"worker": child.Of(func(ctx context.Context, w worker) error { return w.run(ctx) })}

// lease is how long a process that was killed keeps its messages.
const lease = 3 * time.Second

// app is the app of the workers.
func (w worker) app() pubsub.App {
	return pubsub.App{
		Group: "billing" + w.Name, Prefix: "p" + w.Name, Lease: lease,
		Policy: retry.Policy{Schedule: backoff.Schedule{
			500 * time.Millisecond, 500 * time.Millisecond, time.Second, time.Second, 2 * time.Second,
		}},
	}
}

func (w worker) orders() string   { return "orders" + w.Name }
func (w worker) invoices() string { return "invoices" + w.Name }

// until waits for a server that starts again.
func until[T any](ctx context.Context, do func() (T, error)) (T, error) {
	for {
		value, err := do()
		if err == nil || ctx.Err() != nil {
			return value, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// connect waits for the broker.
func (w worker) connect(ctx context.Context, app pubsub.App, logger watermill.LoggerAdapter) (retry.Connection, error) {
	backend, err := pubsub.Open(w.Backend, w.URL, logger)
	if err != nil {
		return nil, err
	}
	return until(ctx, func() (retry.Connection, error) { return backend.Connect(app) })
}

func (w worker) run(ctx context.Context) error {
	child.EndWithParent()
	logger := process.Logger()
	db, err := sql.Open("pgx", w.Database)
	if err != nil {
		return err
	}
	box, err := until(ctx, func() (*inbox.Inbox, error) {
		return inbox.New(db, inbox.Config{CreateTable: true}, logger)
	})
	if err != nil {
		return err
	}
	retries, err := w.connect(ctx, w.app(), logger)
	if err != nil {
		return err
	}
	retries.Observe(observer{})
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, logger)
	if err != nil {
		return err
	}
	retries.AddHandler(router, "billing", w.orders(), w.invoices(), bill).AddMiddleware(box.Middleware)
	go func() {
		<-router.Running()
		child.Write(child.Ready)
	}()
	return errors.Join(router.Run(ctx), retries.Close())
}

type observer struct{}

func (observer) Event(e retry.Event) {
	if e.Outcome == retry.Duplicate {
		child.Write(duplicated)
	}
}

// bill has its effect first, and fails then. Of ten orders one fails once, and one twice; one of fifty fails until it
// is redriven. The calls take a while, so that the kills meet many of them.
func bill(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	if _, err := inbox.Tx(ctx).ExecContext(ctx, "INSERT INTO effects VALUES ($1)", msg.UUID); err != nil {
		return nil, err
	}
	time.Sleep(rand.N(20 * time.Millisecond))
	number, err := strconv.Atoi(msg.UUID)
	if err != nil { // the last order
		return nil, nil
	}
	record, _ := retry.ReadRecord(msg.Metadata)
	history, _ := letters.ReadRedriven(msg.Metadata)
	switch {
	case number%50 == 2 && history.Times == 0:
		return nil, backoff.Permanent(errors.New("the account is closed"))
	case number%10 < 2 && record.Failures <= number%10:
		if number%20 < 10 {
			panic("the bank is down")
		}
		return nil, errors.New("the bank is down")
	}
	return message.Messages{message.NewMessage(watermill.NewUUID(), []byte(msg.UUID))}, nil
}
