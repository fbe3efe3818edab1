package backends

import (
	stdsql "database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/relay"
)

// pollInterval is how late a message can be noticed, and what watermill-sql's default of a second costs.
const pollInterval = 50 * time.Millisecond

// bytea: the default, JSON, takes no other payload.
func bytea(string) string { return "BYTEA" }

// Postgres is watermill-sql on PostgreSQL, at a connection string. Its retries wait in tables of its delayed Pub/Sub, so that
// there are no tiers and no relay: a failed message goes to its handler's return topic at once, and is read when it is due.
func Postgres(url string, logger watermill.LoggerAdapter) Backend {
	p := postgres{url: url, logger: logger}
	return Backend{
		Name: "postgres-delayed", Publisher: p.publisher,
		Connect: func(app App) (*Retries, error) { return p.delayed(app) },
	}
}

// PostgresRelay is watermill-sql without its delayed Pub/Sub, for what has only the plain one.
func PostgresRelay(url string, logger watermill.LoggerAdapter) Backend {
	p := postgres{url: url, logger: logger}
	retries := parts{failures: p.publisher, subscriber: p.subscriber, tier: p.tier}
	return Backend{
		Name: "postgres", Publisher: p.publisher,
		Connect: func(app App) (*Retries, error) { return retries.connect(app, logger) },
	}
}

type postgres struct {
	url    string
	logger watermill.LoggerAdapter
}

func (p postgres) open() (*stdsql.DB, error) {
	db, err := stdsql.Open("pgx", p.url)
	if err != nil {
		return nil, fmt.Errorf("cannot open PostgreSQL: %w", err)
	}
	db.SetMaxIdleConns(16)
	return db, nil
}

// publisher publishes to the app's topics.
func (p postgres) publisher() (message.Publisher, error) {
	return p.newPublisher(sql.PublisherConfig{
		SchemaAdapter: sql.DefaultPostgreSQLSchema{GeneratePayloadType: bytea}, AutoInitializeSchema: true,
	})
}

func (p postgres) newPublisher(config sql.PublisherConfig) (message.Publisher, error) {
	db, err := p.open()
	if err != nil {
		return nil, err
	}
	publisher, err := sql.NewPublisher(sql.BeginnerFromStdSQL(db), config, p.logger)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return withDB{Publisher: publisher, close: publisher.Close, db: db}, nil
}

// subscriber subscribes to the app's topics, by consumer group.
func (p postgres) subscriber(group string, limit time.Duration) (message.Subscriber, error) {
	return p.newSubscriber(sql.SubscriberConfig{
		ConsumerGroup: group, AckDeadline: &limit,
		SchemaAdapter:  sql.DefaultPostgreSQLSchema{GeneratePayloadType: bytea, SubscribeBatchSize: 1},
		OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{},
	})
}

func (p postgres) newSubscriber(config sql.SubscriberConfig) (message.Subscriber, error) {
	config.PollInterval, config.ResendInterval, config.RetryInterval = pollInterval, pollInterval, 100*time.Millisecond
	config.InitializeSchema = true
	db, err := p.open()
	if err != nil {
		return nil, err
	}
	subscriber, err := sql.NewSubscriber(sql.BeginnerFromStdSQL(db), config, p.logger)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return withDB{Subscriber: subscriber, close: subscriber.Close, db: db}, nil
}

// withDB closes the connections of a publisher or subscriber with it.
type withDB struct {
	message.Publisher
	message.Subscriber
	close func() error
	db    *stdsql.DB
}

func (w withDB) Close() error { return errors.Join(w.close(), w.db.Close()) }

// queue is a table of messages that wait until they are due. In batches of more than one watermill-sql v4.0.0 loses messages:
// when a batch is cut short, by a shutdown for instance, it deletes the whole of it. Its own condition for what is due is
// wrong where the session's time zone is not UTC, and fails, for every message of the topic, on one with a NUL in its
// metadata: PostgreSQL cannot make text of that. Here nothing of the metadata but the time itself is read.
var queue = sql.PostgreSQLQueueSchema{
	GeneratePayloadType: bytea,
	SubscribeBatchSize:  1,
	GenerateWhereClause: func(sql.GenerateWhereClauseParams) (string, []any) {
		return fmt.Sprintf(`COALESCE(substring(metadata::text from '"%s":"([^"]*)"')::timestamptz, '-infinity') < clock_timestamp()`,
			delay.DelayedUntilKey), nil
	},
}

// delayed connects an app whose failed messages go to a queue table and wait there.
func (p postgres) delayed(app App) (*Retries, error) {
	failures, err := app.failures(func() (message.Publisher, error) {
		return p.newPublisher(sql.PublisherConfig{SchemaAdapter: queue, AutoInitializeSchema: true})
	})
	if err != nil {
		return nil, err
	}
	returnTopic := func(handler string) string { return app.Prefix + ".return." + handler }
	retry, err := app.middleware(middleware.TieredRetryConfig{
		Publisher: failures,
		Schedule:  app.Schedule,
		GenerateRetryTopic: func(p middleware.RetryTopicParams) (string, error) {
			return returnTopic(p.Handler), nil
		},
		GenerateDeadLetterTopic: func(p middleware.DeadLetterTopicParams) (string, error) {
			return app.Prefix + ".dead." + p.Handler, nil
		},
	}, p.logger)
	if err != nil {
		return nil, errors.Join(err, failures.Close())
	}
	waiting := func() (message.Subscriber, error) {
		limit := app.handlerLimit()
		return p.newSubscriber(sql.SubscriberConfig{
			AckDeadline: &limit, SchemaAdapter: queue, OffsetsAdapter: sql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
		})
	}
	returns, err := waiting()
	if err != nil {
		return nil, errors.Join(err, failures.Close())
	}
	return &Retries{
		Subscriber: func() (message.Subscriber, error) { return p.subscriber(app.Group, app.handlerLimit()) },
		Handle: func(router *message.Router, name, topic string, s message.Subscriber, h message.NoPublishHandlerFunc) {
			router.AddConsumerHandler(name, topic, s, h).AddMiddleware(retry.Middleware)
			router.AddConsumerHandler(name+".retry", returnTopic(name), returns, h).AddMiddleware(from(topic, name), retry.Middleware)
		},
		DeadLetters: func(handler, _ string) (message.Subscriber, string, error) {
			s, err := waiting()
			return s, app.Prefix + ".dead." + handler, err
		},
		Close: func() error { return errors.Join(returns.Close(), failures.Close()) },
	}, nil
}

// from tells the middleware which handler a message of a return topic failed in.
func from(topic, handler string) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			msg.SetContext(middleware.WithOrigin(msg.Context(), topic, handler))
			return h(msg)
		}
	}
}

// tier subscribes a tier. While a message is held watermill-sql keeps a transaction open, and what is published meanwhile
// is visible to nobody if that transaction has an id. It gets one with its first lock of a row, so there must be none.
func (p postgres) tier(_ relay.SubscriberParams, limit time.Duration) (message.Subscriber, error) {
	return p.newSubscriber(sql.SubscriberConfig{
		ConsumerGroup: "retry-relay", AckDeadline: &limit,
		SchemaAdapter:  sql.DefaultPostgreSQLSchema{GeneratePayloadType: bytea, SubscribeBatchSize: 1},
		OffsetsAdapter: tierOffsets{},
	})
}

// tierOffsets takes an advisory lock instead of the row of the offset.
type tierOffsets struct {
	sql.DefaultPostgreSQLOffsetsAdapter
}

func (o tierOffsets) NextOffsetQuery(params sql.NextOffsetQueryParams) (sql.Query, error) {
	return sql.Query{
		Query: `SELECT offset_acked, last_processed_transaction_id FROM ` + o.MessagesOffsetsTable(params.Topic) +
			` WHERE consumer_group = $1 AND pg_try_advisory_xact_lock(hashtextextended($2, 0))`,
		Args: []any{params.ConsumerGroup, params.ConsumerGroup + " " + params.Topic},
	}, nil
}
