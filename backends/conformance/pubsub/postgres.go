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
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// postgresServer is package postgresretry, at a connection string.
type postgresServer struct {
	url    string
	logger watermill.LoggerAdapter
}

func postgresRetry(url string, logger watermill.LoggerAdapter) Backend {
	return postgresServer{url, logger}
}

func (p postgresServer) open() (*sql.DB, error) {
	db, err := sql.Open("pgx", p.url)
	if err != nil {
		return nil, fmt.Errorf("cannot open PostgreSQL: %w", err)
	}
	db.SetMaxIdleConns(8)
	return db, nil
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

func (p postgresServer) config(app App) (postgresretry.Config, error) {
	db, err := p.open()
	return postgresretry.Config{
		DB: db, Group: app.Group, Policy: app.Policy, Prefix: app.Prefix, Lease: app.Lease,
	}, err
}

// Connect implements Backend.
func (p postgresServer) Connect(app App) (retry.Connection, error) {
	config, err := p.config(app)
	if err != nil {
		return nil, err
	}
	connection, err := postgresretry.Connect(config, p.logger)
	if err != nil {
		return nil, errors.Join(err, config.DB.Close())
	}
	return closing{connection, config.DB.Close}, nil
}

// Letters implements Backend.
func (p postgresServer) Letters(app App) (letters.Store, error) {
	config, err := p.config(app)
	if err != nil {
		return nil, err
	}
	store, err := postgresretry.Letters(config, p.logger)
	if err != nil {
		return nil, errors.Join(err, config.DB.Close())
	}
	return closingStore{store, config.DB.Close}, nil
}

// DeadTopic implements Backend.
func (postgresServer) DeadTopic(app App, _, topic string) string {
	return relaytopic.Names{Prefix: app.Prefix}.Dead(relaytopic.Key(app.Group, topic))
}

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
