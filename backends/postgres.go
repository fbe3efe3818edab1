package backends

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/tieredretry/watermill-retry/letters/relayletters"
	"github.com/tieredretry/watermill-retry/relay"
)

// pollInterval is up to how late a subscriber sees a message. watermill-sql's default of 1 second would add that to
// each retry.
const pollInterval = 50 * time.Millisecond

// bytea is the type of the payload's column. With the default, JSON, a payload must be JSON.
func bytea(string) string { return "BYTEA" }

// Postgres is watermill-sql on PostgreSQL, at a connection string. There are no tier topics: a message that failed goes
// to its handler's return topic at once, and is read from there when it is due. The app's topics have tables of
// watermill-sql's Pub/Sub, those of the retries queue tables.
func Postgres(url string, logger watermill.LoggerAdapter) Backend {
	return relayed{pubSub: postgres{url, logger}, logger: logger, delays: true}
}

type postgres struct {
	url    string
	logger watermill.LoggerAdapter
}

func (p postgres) publisher(app App) (message.Publisher, error) {
	topics, err := p.newPublisher(sql.DefaultPostgreSQLSchema{GeneratePayloadType: bytea})
	if err != nil {
		return nil, err
	}
	retries, err := p.newPublisher(waitingQueue)
	if err != nil {
		return nil, errors.Join(err, topics.Close())
	}
	return toTopic{Publisher: topics, retries: retries, prefix: app.Prefix + "."}, nil
}

func (p postgres) subscriber(app App, params relay.SubscriberParams) (message.Subscriber, error) {
	limit := app.limit(params)
	topics, err := p.newSubscriber(sql.SubscriberConfig{
		ConsumerGroup: app.group(params), AckDeadline: &limit,
		SchemaAdapter:  sql.DefaultPostgreSQLSchema{GeneratePayloadType: bytea, SubscribeBatchSize: 1},
		OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{},
	})
	if err != nil {
		return nil, err
	}
	retries, err := p.newSubscriber(sql.SubscriberConfig{
		AckDeadline: &limit, SchemaAdapter: waitingQueue,
		OffsetsAdapter: sql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
	})
	if err != nil {
		return nil, errors.Join(err, topics.Close())
	}
	return byTopic{Subscriber: topics, retries: retries, prefix: app.Prefix + "."}, nil
}

func (p postgres) reader(App) (relayletters.Reader, error) {
	db, err := p.open()
	return postgresLetters{db}, err
}

func (p postgres) open() (*stdsql.DB, error) {
	db, err := stdsql.Open("pgx", p.url)
	if err != nil {
		return nil, fmt.Errorf("cannot open PostgreSQL: %w", err)
	}
	db.SetMaxIdleConns(16)
	return db, nil
}

func (p postgres) newPublisher(schema sql.SchemaAdapter) (message.Publisher, error) {
	db, err := p.open()
	if err != nil {
		return nil, err
	}
	publisher, err := sql.NewPublisher(sql.BeginnerFromStdSQL(db),
		sql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, p.logger)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return publisherDB{publisher, db}, nil
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
	return subscriberDB{subscriber, db}, nil
}

// publisherDB closes its connections with Close.
type publisherDB struct {
	message.Publisher
	db *stdsql.DB
}

func (p publisherDB) Close() error { return errors.Join(p.Publisher.Close(), p.db.Close()) }

// subscriberDB closes its connections with Close.
type subscriberDB struct {
	message.Subscriber
	db *stdsql.DB
}

func (s subscriberDB) Close() error { return errors.Join(s.Subscriber.Close(), s.db.Close()) }

// queue is a table of messages that wait until they are due. It replaces watermill-sql's own table for delayed
// messages, which in v4.0.0 has these faults. A batch that a shutdown interrupts is deleted as a whole: messages are
// lost. In a session whose time zone is not UTC, messages come early or late. A NUL in the metadata of one message
// stops its topic, because PostgreSQL cannot convert it to text. Each poll reads all messages that wait.
type queue struct{ sql.PostgreSQLQueueSchema }

var waitingQueue = queue{sql.PostgreSQLQueueSchema{GeneratePayloadType: bytea, SubscribeBatchSize: 1}}

// due reads the time from the text of the metadata. Only a key can match: in a value, JSON escapes the quotes.
const due = `COALESCE(substring(metadata::text from '"` + delay.DelayedUntilKey + `":"([^"]*)"'), '') COLLATE "C"`

func (q queue) SchemaInitializingQueries(params sql.SchemaInitializingQueriesParams) ([]sql.Query, error) {
	queries, err := q.PostgreSQLQueueSchema.SchemaInitializingQueries(params)
	table := q.MessagesTable(params.Topic)
	if name := strings.Trim(table, `"`); len(name) > 63 {
		return nil, fmt.Errorf("topic %q needs a table named %q of %d bytes; PostgreSQL cuts names at 63 bytes, and "+
			"two topics could share a table: "+
			"use a shorter handler name or prefix", params.Topic, name, len(name))
	}
	lock := sql.Query{Query: fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)",
		sql.DefaultSchemaInitializationLock("watermill-retry"))}
	index := sql.Query{Query: fmt.Sprintf(`CREATE INDEX IF NOT EXISTS "%s_due" ON %s ((%s))`,
		strings.Trim(table, `"`), table, due)}
	return append(append([]sql.Query{lock}, queries...), index), err
}

// RequiresTransaction keeps the lock until the table exists: two sessions that create the same table at once fail.
func (queue) RequiresTransaction() bool { return true }

// SelectQuery takes the message that has been due for the longest time, and skips those that other sessions handle.
func (q queue) SelectQuery(params sql.SelectQueryParams) (sql.Query, error) {
	return sql.Query{Query: fmt.Sprintf(`SELECT "offset", uuid, payload, metadata FROM %s
		WHERE %s <= to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AND NOT acked
		ORDER BY %[2]s LIMIT 1 FOR UPDATE SKIP LOCKED`, q.MessagesTable(params.Topic), due)}, nil
}

// byTopic subscribes to topics with the prefix of the retries in another way.
type byTopic struct {
	message.Subscriber
	retries message.Subscriber
	prefix  string
}

func (b byTopic) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if strings.HasPrefix(topic, b.prefix) {
		return b.retries.Subscribe(ctx, topic)
	}
	return b.Subscriber.Subscribe(ctx, topic)
}

func (b byTopic) Close() error { return errors.Join(b.Subscriber.Close(), b.retries.Close()) }

// toTopic is byTopic for publishers.
type toTopic struct {
	message.Publisher
	retries message.Publisher
	prefix  string
}

func (t toTopic) Publish(topic string, messages ...*message.Message) error {
	if strings.HasPrefix(topic, t.prefix) {
		return t.retries.Publish(topic, messages...)
	}
	return t.Publisher.Publish(topic, messages...)
}

func (t toTopic) Close() error { return errors.Join(t.Publisher.Close(), t.retries.Close()) }
