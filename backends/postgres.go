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

	"github.com/tieredretry/watermill-retry/relay"
)

// pollInterval is up to how late a subscriber sees a message. watermill-sql's default of 1 second would add that to
// each retry.
const pollInterval = 50 * time.Millisecond

// bytea is the type of the payload's column. With the default, JSON, a payload must be JSON.
func bytea(string) string { return "BYTEA" }

// Postgres is watermill-sql on PostgreSQL, at a connection string. There are no tier topics: a message that failed goes
// to its handler's return topic at once, and is read from there when it is due. The tables of the return topics are
// those of watermill-sql's delayed Pub/Sub.
func Postgres(url string, logger watermill.LoggerAdapter) Backend {
	p := postgres{url: url, logger: logger}
	retries := parts{
		publisher:  p.publisher,
		copies:     p.waiting,
		subscriber: p.delayed, topics: p.letters(true),
		redrives: p.both,
	}
	return Backend{
		Name: "postgres-delayed", Publisher: p.publisher, Letters: retries.letters,
		Connect: func(app App) (*Connection, error) { return retries.connect(app, logger) }, Remove: p.remove,
	}
}

// PostgresRelay is watermill-sql on PostgreSQL without its delayed Pub/Sub. The relay delays the messages.
func PostgresRelay(url string, logger watermill.LoggerAdapter) Backend {
	p := postgres{url: url, logger: logger}
	retries := parts{
		publisher: p.publisher,
		subscriber: func(app App, group string) (message.Subscriber, error) {
			return p.subscriber(group, app.handlerLimit())
		},
		tier: p.tier, topics: p.letters(false),
	}
	return Backend{
		Name: "postgres", Publisher: p.publisher, Letters: retries.letters,
		Connect: func(app App) (*Connection, error) { return retries.connect(app, logger) }, Remove: p.remove,
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

// waiting publishes to tables of messages that wait.
func (p postgres) waiting() (message.Publisher, error) {
	return p.newPublisher(sql.PublisherConfig{SchemaAdapter: waitingQueue, AutoInitializeSchema: true})
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

// withDB is a publisher or subscriber that closes its connections with Close.
type withDB struct {
	message.Publisher
	message.Subscriber
	close func() error
	db    *stdsql.DB
}

func (w withDB) Close() error { return errors.Join(w.close(), w.db.Close()) }

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

// delayed subscribes to the app's topics by consumer group, and to those of the retries as to queue tables.
func (p postgres) delayed(app App, group string) (message.Subscriber, error) {
	limit := app.handlerLimit()
	topics, err := p.subscriber(group, limit)
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

// both publishes to the app's topics and to those of the retries.
func (p postgres) both(app App) (message.Publisher, error) {
	topics, err := p.publisher()
	if err != nil {
		return nil, err
	}
	retries, err := p.waiting()
	if err != nil {
		return nil, errors.Join(err, topics.Close())
	}
	return toTopic{Publisher: topics, retries: retries, prefix: app.Prefix + "."}, nil
}

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

// tier subscribes to a tier. watermill-sql keeps a transaction open while a message waits there. If that transaction
// has an id, no subscriber sees what is published after it. PostgreSQL gives it an id when it locks a row: a tier locks
// no row.
func (p postgres) tier(_ relay.SubscriberParams, limit time.Duration) (message.Subscriber, error) {
	return p.newSubscriber(tierConfig(limit))
}

func tierConfig(limit time.Duration) sql.SubscriberConfig {
	return sql.SubscriberConfig{
		ConsumerGroup: "retry-relay", AckDeadline: &limit,
		SchemaAdapter:  sql.DefaultPostgreSQLSchema{GeneratePayloadType: bytea, SubscribeBatchSize: 1},
		OffsetsAdapter: tierOffsets{},
	}
}

// tierOffsets takes an advisory lock instead of a lock of the offset's row.
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

// remove drops the tables.
func (p postgres) remove(prefix string, topics ...string) error {
	db, err := p.open()
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	_, err = db.Exec(`DO $$ DECLARE name text; BEGIN
		FOR name IN SELECT tablename FROM pg_tables
			WHERE schemaname = current_schema() AND (` + ofTables(prefix, topics) + `)
		LOOP EXECUTE format('DROP TABLE %I', name); END LOOP; END $$`)
	return err
}

func ofTables(prefix string, topics []string) string {
	conditions := []string{fmt.Sprintf("starts_with(tablename, %s)", literal("watermill_"+prefix+".")),
		fmt.Sprintf("starts_with(tablename, %s)", literal("watermill_offsets_"+prefix+"."))}
	for _, topic := range topics {
		conditions = append(conditions, fmt.Sprintf("tablename IN (%s, %s)", literal("watermill_"+topic),
			literal("watermill_offsets_"+topic)))
	}
	return strings.Join(conditions, " OR ")
}

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
