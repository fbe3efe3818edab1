package postgresretry_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

var db *sql.DB // of sql.Open("pgx", url), or with another driver

func bill(*message.Message) error { return nil }

// An app whose failed orders wait 1s, 5s, 25s and 125s in the database.
func ExampleConnect() {
	logger, router := watermill.NopLogger{}, message.NewDefaultRouter(nil)
	retries, err := postgresretry.Connect(postgresretry.Config{
		DB:     db,
		Group:  "billing",
		Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)},
	}, logger)
	check(err)
	retries.AddConsumerHandler(router, "bill", "orders", bill)
	check(router.Run(context.Background()))
	check(retries.Close()) // after the router
}

// The dead letters of the group billing on the topic orders go back to their handler.
func ExampleLetters() {
	dead, err := postgresretry.Letters(postgresretry.Config{DB: db}, nil)
	check(err)
	summary, err := dead.Redrive(context.Background(), "retry.dead.billing.orders", letters.Redrive{Rate: 50})
	fmt.Println(summary) // also with an error
	check(err)
	check(dead.Close())
}

// The statements for a migration, where the app itself may not create tables and functions.
func ExampleSchema() {
	for line := range strings.Lines(postgresretry.Schema("app.retries")) {
		if strings.HasPrefix(line, "CREATE") {
			fmt.Print(line)
		}
	}
	// Output:
	// CREATE TABLE IF NOT EXISTS "app"."retries" (
	// CREATE INDEX IF NOT EXISTS "retries_due" ON "app"."retries" (topic, due) WHERE due < 'infinity';
	// CREATE INDEX IF NOT EXISTS "retries_dead" ON "app"."retries" (topic, id) WHERE due = 'infinity';
	// CREATE TABLE IF NOT EXISTS "app"."retries_handlers" (
	// CREATE OR REPLACE FUNCTION "app"."retries_take"(text[], integer[], bigint[], bigint)
	// CREATE OR REPLACE FUNCTION "app"."retries_ack"(bigint[], text[]) RETURNS void
}

func ExampleConfig_Validate() {
	fmt.Println(postgresretry.Config{Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 3)}}.Validate())
	// Output:
	// DB is nil: set the database
	// Group is empty: set the name of the service, which is the consumer group of its handlers
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
