package main

import (
	"context"
	stdsql "database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
)

var postgresBackend = backend{name: "postgres", open: openPostgres}

// postgresSchema has batches of 100, the default.
var postgresSchema = sql.DefaultPostgreSQLSchema{GeneratePayloadType: func(string) string { return "BYTEA" }}

// postgresApp keeps what waits in a table. A consumer group of watermill-sql handles one message of a topic at a time,
// for all processes. It acks batches of 100, so a process that dies causes up to 99 duplicates.
type postgresApp struct {
	topic string
	db    *stdsql.DB
}

func openPostgres(address, topic string) (app, error) {
	db, err := stdsql.Open("pgx", address)
	if err != nil {
		return nil, err
	}
	db.SetMaxIdleConns(8)
	a := &postgresApp{topic: topic, db: db}
	_, err = db.Exec(`SELECT pg_advisory_xact_lock(1);
		CREATE TABLE IF NOT EXISTS ` + a.waiting() + ` (id BIGSERIAL PRIMARY KEY, uuid VARCHAR(36) NOT NULL,
			payload BYTEA, metadata JSON, due TIMESTAMPTZ NOT NULL);
		CREATE INDEX IF NOT EXISTS ` + a.waiting() + `_due ON ` + a.waiting() + ` (due)`)
	return a, err
}

func (a *postgresApp) waiting() string { return a.topic + "_waiting" }

func (a *postgresApp) subscribers() ([]message.Subscriber, error) {
	s, err := sql.NewSubscriber(sql.BeginnerFromStdSQL(a.db), sql.SubscriberConfig{
		ConsumerGroup: group, PollInterval: poll, ResendInterval: poll, RetryInterval: 100 * time.Millisecond,
		SchemaAdapter: postgresSchema, OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
	}, logger())
	return []message.Subscriber{s}, err
}

func (a *postgresApp) wait(msg *message.Message, due time.Time) error {
	metadata, err := json.Marshal(msg.Metadata)
	if err != nil {
		return err
	}
	_, err = a.db.ExecContext(msg.Context(), `INSERT INTO `+a.waiting()+` (uuid, payload, metadata, due)
		VALUES ($1, $2, $3, $4)`, msg.UUID, []byte(msg.Payload), metadata, due)
	return err
}

// move needs one statement: the row is in one of the two tables at any time.
func (a *postgresApp) move(ctx context.Context) error {
	query := fmt.Sprintf(`WITH due AS (
			DELETE FROM %[1]s WHERE id IN (
				SELECT id FROM %[1]s WHERE due <= now() ORDER BY due LIMIT %[2]d FOR UPDATE SKIP LOCKED)
			RETURNING uuid, payload, metadata)
		INSERT INTO %[3]s (uuid, payload, metadata, transaction_id)
		SELECT uuid, payload, metadata, pg_current_xact_id() FROM due`,
		a.waiting(), batch, postgresSchema.MessagesTable(a.topic))
	return polls(ctx, func(ctx context.Context) (int, error) {
		moved, err := a.db.ExecContext(ctx, query)
		if err != nil {
			return 0, err
		}
		rows, err := moved.RowsAffected()
		return int(rows), err
	})
}

func (a *postgresApp) Close() error { return a.db.Close() }
