package conformance

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq" // the driver postgres
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/retry"
)

// onPostgres is a database of its own on the shared server.
type onPostgres struct {
	t   *testing.T
	url string
	db  *sql.DB
}

func startPostgres(t *testing.T) onPostgres {
	t.Helper()
	t.Parallel()
	shared := sharedServer(t, "postgres")
	admin, err := sql.Open("pgx", shared)
	require.NoError(t, err)
	defer func() { require.NoError(t, admin.Close()) }()
	name := "db_" + strings.ToLower(rand.Text()[:12])
	_, err = admin.Exec(`CREATE DATABASE "` + name + `"`)
	require.NoError(t, err)
	p := onPostgres{t: t, url: strings.Replace(shared, "/postgres?", "/"+name+"?", 1)}
	p.db = p.open()
	return p
}

func (p onPostgres) open() *sql.DB {
	p.t.Helper()
	db, err := sql.Open("pgx", p.url)
	require.NoError(p.t, err)
	db.SetMaxOpenConns(16)
	p.t.Cleanup(func() { _ = db.Close() })
	return db
}

func (p onPostgres) config() postgresretry.Config {
	return postgresretry.Config{
		DB: p.db, Group: "billing", Policy: retry.Policy{Schedule: backoff.Schedule{200 * time.Millisecond}},
	}
}

// connect connects an app.
func (p onPostgres) connect(config postgresretry.Config) *app {
	p.t.Helper()
	return connect(p.t, func(logger watermill.LoggerAdapter) (retry.Connection, error) {
		return postgresretry.Connect(config, logger)
	})
}

func (p onPostgres) count(query string, args ...any) (n int) {
	p.t.Helper()
	require.NoError(p.t, p.db.QueryRow(query, args...).Scan(&n))
	return n
}

func (p onPostgres) exec(query string, args ...any) {
	p.t.Helper()
	_, err := p.db.Exec(query, args...)
	require.NoError(p.t, err)
}

// awaitNothing waits until nothing of the retries is left.
func (p onPostgres) awaitNothing() {
	p.t.Helper()
	wait.Until(p.t, func() bool { return p.count(`SELECT count(*) FROM retry_messages`) == 0 }, "no row is left")
}

// awaitDead waits until there are so many dead letters.
func (p onPostgres) awaitDead(n int) {
	p.t.Helper()
	wait.Until(p.t, func() bool { return p.count(`SELECT count(*) FROM retry_messages WHERE due = 'infinity'`) == n },
		"there are %d dead letters", n)
}

// Processes that start at the same time make the tables once. An app that may not create tables finds those of an
// operator, and its error names what the operator has left out. A table of another kind
// is refused, and so are topics that would share a table.
func TestPostgresTables(t *testing.T) {
	p := startPostgres(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			config := p.config()
			config.DB = p.open()
			retries, err := postgresretry.Connect(config, nil)
			if assert.NoError(t, err) {
				assert.NoError(t, retries.Close())
			}
		})
	}
	all.Wait()

	role := "app_" + strings.ToLower(rand.Text()[:12])
	p.exec(`CREATE ROLE ` + role + ` LOGIN`)
	p.exec(`CREATE SCHEMA app`)
	p.exec(`GRANT USAGE ON SCHEMA app TO ` + role)
	limited := p
	limited.url = strings.Replace(p.url, "postgres@", role+"@", 1)
	config := p.config()
	config.Table, config.DB = "app.retries", limited.open()
	_, err := postgresretry.Connect(config, nil)
	require.ErrorContains(t, err, `missing, table "app"."retries", table "app"."retries_handlers", function "app"."retries_take"(`)
	require.ErrorContains(t, err, "execute postgresretry.Schema as a user who may")
	schema := postgresretry.Schema("app.retries")
	tables, _, found := strings.Cut(schema, "CREATE OR REPLACE FUNCTION")
	require.True(t, found)
	p.exec(tables)
	_, err = postgresretry.Connect(config, nil)
	require.ErrorContains(t, err, `GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE "app"."retries" TO `+role+
		`; GRANT SELECT, INSERT ON TABLE "app"."retries_handlers" TO `+role)
	p.exec(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA app TO ` + role)
	_, err = postgresretry.Connect(config, nil)
	require.ErrorContains(t, err, `missing, function "app"."retries_take"(text[], integer[], bigint[], bigint), `+
		`function "app"."retries_ack"(bigint[], text[]): execute postgresretry.Schema as a user who may, `)
	require.ErrorContains(t, err, "permission denied for schema app")
	p.exec(schema)
	retries, err := postgresretry.Connect(config, nil)
	require.NoError(t, err)
	require.NoError(t, retries.Close())

	p.exec(`CREATE TABLE other (id int)`)
	p.exec(`CREATE TABLE other_handlers (topic text)`)
	config = p.config()
	config.Table = "other"
	_, err = postgresretry.Connect(config, nil)
	require.ErrorContains(t, err, `the table "other" is not that of this package`)

	retried := p.connect(p.config()).handle("bill", strings.Repeat("t", 46), nothing)
	err = retried.Publisher().Publish(strings.Repeat("t", 54), message.NewMessage("1", nil))
	require.ErrorContains(t, err, "use a topic of at most 53 bytes")
	require.ErrorContains(t, retried.router.Run(t.Context()), "use a topic of at most 45 bytes")
}

// Copies that are stored in one statement do not fail with one that PostgreSQL refuses.
func TestPostgresRefusesOneCopy(t *testing.T) {
	p := startPostgres(t)
	app := p.connect(p.config())
	var all sync.WaitGroup
	failed := make([]error, 200)
	for i := range failed {
		all.Go(func() {
			id := fmt.Sprint(i)
			if i%50 == 7 {
				id += "\xff" // no text
			}
			failed[i] = app.Publisher().Publish("retry.return.x", message.NewMessage(id, nil))
		})
	}
	all.Wait()
	for i, err := range failed {
		assert.Equal(t, i%50 == 7, err != nil, "%d: %v", i, err)
	}
	assert.Equal(t, 196, p.count(`SELECT count(DISTINCT uuid) FROM retry_messages`))
}

// A message of the table comes when it is due, whatever process had it before.
func TestPostgresMessageOfADeadProcess(t *testing.T) {
	p := startPostgres(t)
	config := p.config()
	config.Lease = time.Hour
	p.connect(config).publishTo("retry.return.billing.orders", "1")
	taken := time.Now()
	p.exec(`UPDATE retry_messages SET due = clock_timestamp() + interval '2 seconds', takes = 1`) // taken by a process
	seen := newLedger()
	p.connect(config).bills(seen.failing(0))
	p.awaitNothing()
	require.Len(t, seen.of("1"), 1)
	assert.GreaterOrEqual(t, seen.of("1")[0].at.Sub(taken), 2*time.Second)
}

// A program that writes rows of its own can give them any time at which they are due.
func TestPostgresRowsThatAreDueAtOddTimes(t *testing.T) {
	p := startPostgres(t)
	app := p.connect(p.config())
	for _, due := range []string{"-infinity", "0001-01-01 BC", "0001-01-01", "1970-01-01", "9999-12-31"} {
		p.exec(`INSERT INTO retry_messages (topic, due, uuid, payload, metadata)
			VALUES ('retry.return.billing.orders', '` + due + `', '` + due + `', '', '{}')`)
	}
	waiting, err := operate.Of(p.store(p.config())).Waiting(t.Context())
	require.NoError(t, err)
	require.Len(t, waiting, 1)
	assert.EqualValues(t, 4, waiting[0].Overdue)
	seen := newLedger()
	app.bills(seen.failing(0))
	seen.await(t, 4, 0)
}

// frozen is a database whose commits stand still, as in a process that is stopped before them.
type frozen struct {
	on    atomic.Bool
	thaws chan struct{}
	count atomic.Int64 // commits that stand still
}

func (f *frozen) TraceQueryStart(ctx context.Context, _ *pgx.Conn, query pgx.TraceQueryStartData) context.Context {
	if f.on.Load() && query.SQL == "commit" {
		f.count.Add(1)
		<-f.thaws
	}
	return ctx
}

func (*frozen) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A process that is stopped in the middle of a transaction keeps its message for a lease, and not until it goes on.
func TestPostgresProcessStopsBeforeACommit(t *testing.T) {
	p := startPostgres(t)
	stopped := &frozen{thaws: make(chan struct{})}
	parsed, err := pgx.ParseConfig(p.url)
	require.NoError(t, err)
	parsed.Tracer = stopped
	db := stdlib.OpenDB(*parsed)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	config := p.config()
	config.DB, config.Lease = db, time.Second
	p.connect(config).bills(func(*message.Message) error {
		stopped.on.Store(true) // the renewal is the next one
		<-stopped.thaws        // after the end of its context, it could be settled before another process has it
		return nil
	}).publish("1")
	t.Cleanup(func() { close(stopped.thaws) })
	wait.Until(t, func() bool { return stopped.count.Load() > 0 }, "a commit stands still")

	config.DB = p.open()
	seen := newLedger()
	p.connect(config).bills(seen.failing(0))
	seen.await(t, 1, 0)
}

// While another process has locked the group's offset, it is not known whether there are messages: the topic is read
// again soon, and not once a second, as a topic without messages.
func TestPostgresLockedOffset(t *testing.T) {
	p := startPostgres(t)
	seen := newLedger()
	app := p.connect(p.config()).handle("idle", "idle", nothing).bills(seen.failing(0))
	app.publish("1")
	seen.await(t, 1, 0)
	tx, err := p.db.Begin()
	require.NoError(t, err)
	_, err = tx.Exec(`SELECT 1 FROM watermill_offsets_orders FOR UPDATE`)
	require.NoError(t, err)
	app.publish("2")
	reads := func(topic string) int {
		return p.count(`SELECT seq_scan + COALESCE(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = $1`,
			"watermill_offsets_"+topic)
	}
	locked, idle := reads(orders), reads("idle")
	wait.Until(t, func() bool { return reads(orders) >= locked+30 && reads("idle") > idle }, "both are read")
	t.Logf("read %d times, and the idle one %d times", reads(orders)-locked, reads("idle")-idle)
	assert.Greater(t, reads(orders)-locked, 2*(reads("idle")-idle))
	require.NoError(t, tx.Commit())
	seen.await(t, 2, 0)
}

// Fewer connections than handlers that run: none is kept by a handler.
func TestPostgresNeedsFourConnections(t *testing.T) {
	p := startPostgres(t)
	config := p.config()
	config.DB.SetMaxOpenConns(4)
	const inFlight = 64
	seen := newLedger()
	all := make(chan struct{})
	p.connect(config).bills(func(msg *message.Message) error {
		err := seen.failing(1)(msg)
		<-all
		return err
	}, retry.Options{Concurrency: inFlight}).publish(ids(inFlight)...)
	seen.await(t, inFlight, 0)
	close(all)
	seen.await(t, inFlight, 1)
}

// Services with watermill-sql's own publisher and subscriber share topics with an app, with payloads of JSON too.
func TestPostgresStockPubSub(t *testing.T) {
	for payload, kind := range map[string]string{"bytea": "BYTEA", "json": "", "jsonb": "JSONB"} {
		t.Run(payload, func(t *testing.T) {
			p := startPostgres(t)
			schema := wmsql.DefaultPostgreSQLSchema{}
			if kind != "" {
				schema.GeneratePayloadType = func(string) string { return kind }
			}
			stock, err := wmsql.NewPublisher(wmsql.BeginnerFromStdSQL(p.db),
				wmsql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, nil)
			require.NoError(t, err)
			subscriber, err := wmsql.NewSubscriber(wmsql.BeginnerFromStdSQL(p.db), wmsql.SubscriberConfig{
				ConsumerGroup: "stock", SchemaAdapter: schema, OffsetsAdapter: wmsql.DefaultPostgreSQLOffsetsAdapter{},
				PollInterval: 10 * time.Millisecond, InitializeSchema: true,
			}, nil)
			require.NoError(t, err)
			defer func() { require.NoError(t, subscriber.Close()) }()
			in, err := subscriber.Subscribe(t.Context(), orders)
			require.NoError(t, err)
			seen := newLedger()
			app := p.connect(p.config()).bills(seen.failing(1))
			text := `{"order": 1}`
			for _, publisher := range []message.Publisher{stock, app.Publisher()} {
				msg := message.NewMessage(fmt.Sprintf("%T", publisher)[:10], []byte(text))
				msg.Metadata.Set("key", "value")
				require.NoError(t, publisher.Publish(orders, msg))
				other := wait.For(t, in, "the other service has it")
				assert.Equal(t, msg.UUID, other.UUID)
				assert.JSONEq(t, text, string(other.Payload))
				other.Ack()
				wait.Until(t, func() bool { return len(seen.of(msg.UUID)) == 2 }, "it is retried")
				again := seen.of(msg.UUID)[1].msg
				assert.JSONEq(t, text, string(again.Payload))
				assert.Equal(t, "value", again.Metadata["key"])
			}
			assert.Empty(t, in, "the other service gets no retry")
		})
	}
}

// This is why watermill-sql's subscriber is not used. When the test fails, the fault is gone.
func TestFaultStockSubscriberStopsOtherTopics(t *testing.T) {
	p := startPostgres(t)
	var noLimit time.Duration
	schema := wmsql.DefaultPostgreSQLSchema{GeneratePayloadType: func(string) string { return "BYTEA" }}
	publisher, err := wmsql.NewPublisher(wmsql.BeginnerFromStdSQL(p.db),
		wmsql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, nil)
	require.NoError(t, err)
	subscriber, err := wmsql.NewSubscriber(wmsql.BeginnerFromStdSQL(p.db), wmsql.SubscriberConfig{
		ConsumerGroup: "g", SchemaAdapter: schema, OffsetsAdapter: wmsql.DefaultPostgreSQLOffsetsAdapter{},
		PollInterval: 10 * time.Millisecond, InitializeSchema: true, AckDeadline: &noLimit,
	}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, subscriber.Close()) }()
	one, err := subscriber.Subscribe(t.Context(), "one")
	require.NoError(t, err)
	two, err := subscriber.Subscribe(t.Context(), "two")
	require.NoError(t, err)
	require.NoError(t, publisher.Publish("one", message.NewMessage("1", nil)))
	slow := <-one // its handler runs
	require.NoError(t, publisher.Publish("two", message.NewMessage("2", nil)))
	select {
	case <-two:
		assert.Fail(t, "a handler of another topic does not stop this one: use watermill-sql's subscriber")
	case <-time.After(2 * time.Second):
	}
	slow.Ack()
	(<-two).Ack()
}
