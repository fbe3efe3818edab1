package pgxinbox_test

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/inbox/pgxinbox"
	"github.com/tieredretry/watermill-retry/retry"
)

// A handler whose effects happen once, with a transaction of pgx.
func Example() {
	bill := func(msg *message.Message) error {
		ctx := msg.Context()
		_, err := pgxinbox.Tx(ctx).Exec(ctx, "UPDATE accounts SET billed = billed + 1 WHERE customer = $1", "ann")
		return err
	}
	add := func(rabbit retry.Connection, router *message.Router, pool *pgxpool.Pool, logger watermill.LoggerAdapter) error {
		box, err := pgxinbox.New(pool, inbox.Config{}, logger)
		if err != nil {
			return err
		}
		rabbit.AddConsumerHandler(router, "billing", "orders", bill).AddMiddleware(box.Middleware)
		return nil
	}
	_ = add
}
