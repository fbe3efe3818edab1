package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/retry"
)

// bill has its effects in the transaction of the inbox.
func bill(msg *message.Message) error {
	ctx := msg.Context()
	_, err := inbox.Tx(ctx).ExecContext(ctx, "UPDATE accounts SET billed = billed + 1 WHERE customer = $1", "ann")
	return err
}

// A handler whose effects happen once. The rabbit is what Connect has returned, and the database what sql.Open has.
func Example() {
	add := func(rabbit retry.Connection, router *message.Router, db *sql.DB, logger watermill.LoggerAdapter) error {
		box, err := inbox.New(db, inbox.Config{Retention: 30 * 24 * time.Hour}, logger)
		if err != nil {
			return err
		}
		rabbit.AddConsumerHandler(router, "billing", "orders", bill).AddMiddleware(box.Middleware)
		return nil
	}
	_ = add
}

// The processors of components/cqrs get the middlewares from the router, and a handler the transaction from its
// context.
func ExampleInbox_Middleware() {
	type OrderPlaced struct{ Customer string }
	add := func(rabbit retry.Connection, router *message.Router, box *inbox.Inbox) {
		router.AddMiddleware(rabbit.Middleware, box.Middleware)
	}
	onOrderPlaced := func(ctx context.Context, event *OrderPlaced) error {
		_, err := inbox.Tx(ctx).ExecContext(ctx, "UPDATE accounts SET billed = billed + 1 WHERE customer = $1",
			event.Customer)
		return err
	}
	_, _ = add, onOrderPlaced
}

// A migration of the app creates the table.
func ExampleSchema() {
	fmt.Print(inbox.Schema("watermill_inbox"))
	// Output:
	// CREATE TABLE IF NOT EXISTS watermill_inbox (
	// 	consumer   text NOT NULL,
	// 	message_id text NOT NULL,
	// 	redrive    text NOT NULL,
	// 	handled_at timestamptz NOT NULL DEFAULT now(),
	// 	produced   bytea,
	// 	PRIMARY KEY (consumer, message_id, redrive)
	// );
}
