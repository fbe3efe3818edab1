package pubsub

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
)

// postgresServer is package postgresretry, at a connection string.
type postgresServer struct {
	module[postgresretry.Config]
	open func() (*sql.DB, error)
}

func postgresRetry(url string, logger watermill.LoggerAdapter) Backend {
	open := func() (*sql.DB, error) {
		db, err := sql.Open("pgx", url)
		if err != nil {
			return nil, fmt.Errorf("cannot open PostgreSQL: %w", err)
		}
		db.SetMaxIdleConns(8)
		return db, nil
	}
	config := func(app App) (postgresretry.Config, func() error, error) {
		db, err := open()
		return postgresretry.Config{
			DB: db, Group: app.Group, Policy: app.Policy, Prefix: app.Prefix, Lease: app.Lease,
		}, db.Close, err
	}
	return postgresServer{
		module[postgresretry.Config]{logger, config, postgresretry.Connect, postgresretry.Letters}, open,
	}
}

// Publisher implements Backend.
func (p postgresServer) Publisher() (message.Publisher, error) {
	db, err := p.open()
	if err != nil {
		return nil, err
	}
	publisher, err := wmsql.NewPublisher(wmsql.BeginnerFromStdSQL(db), wmsql.PublisherConfig{
		SchemaAdapter:        wmsql.DefaultPostgreSQLSchema{GeneratePayloadType: func(string) string { return "BYTEA" }},
		AutoInitializeSchema: true,
	}, p.logger)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return publisherDB{publisher, db}, nil
}

// publisherDB closes its database.
type publisherDB struct {
	message.Publisher
	db *sql.DB
}

func (p publisherDB) Close() error { return errors.Join(p.Publisher.Close(), p.db.Close()) }

// Left implements Backend. It counts the rows of the app's return topics.
func (p postgresServer) Left(ctx context.Context, app App, _ []string) (left int, err error) {
	db, err := p.open()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.QueryRowContext(ctx, `SELECT count(*) FROM retry_messages WHERE starts_with(topic, $1)`,
		relaytopic.Names{Prefix: app.Prefix}.Return("")).Scan(&left)
	return left, err
}
