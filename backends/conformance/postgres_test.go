package conformance

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
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

	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// onPostgres is a database of its own on a server that the tests of this file share.
type onPostgres struct {
	t   *testing.T
	url string
	db  *sql.DB
}

var sharedPostgres string // its address, under the lock of running

func startPostgres(t *testing.T) onPostgres {
	t.Helper()
	t.Parallel()
	running.Lock()
	if sharedPostgres == "" {
		server, err := servers.PostgreSQL(interrupted)
		if err == nil {
			running.servers, sharedPostgres = append(running.servers, server), server.URL
		}
	}
	running.Unlock()
	require.NotEmpty(t, sharedPostgres, "the server does not start")
	admin, err := sql.Open("pgx", sharedPostgres)
	require.NoError(t, err)
	defer func() { require.NoError(t, admin.Close()) }()
	name := "db_" + strings.ToLower(rand.Text()[:12])
	_, err = admin.Exec(`CREATE DATABASE "` + name + `"`)
	require.NoError(t, err)
	p := onPostgres{t: t, url: strings.Replace(sharedPostgres, "/postgres?", "/"+name+"?", 1)}
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

// app runs a handler on orders, and returns the connection and what stops both.
func (p onPostgres) app(
	config postgresretry.Config, handle message.NoPublishHandlerFunc, options ...retry.Options,
) (retry.Connection, func()) {
	p.t.Helper()
	return p.appWithLog(config, watermill.NopLogger{}, handle, options...)
}

func (p onPostgres) appWithLog(
	config postgresretry.Config, logger watermill.LoggerAdapter, handle message.NoPublishHandlerFunc,
	options ...retry.Options,
) (retry.Connection, func()) {
	p.t.Helper()
	retries, err := postgresretry.Connect(config, logger)
	require.NoError(p.t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, watermill.NopLogger{})
	require.NoError(p.t, err)
	retries.AddConsumerHandler(router, "bill", "orders", handle, options...)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		require.NoError(p.t, err)
	}
	stop := sync.OnceFunc(func() {
		assert.NoError(p.t, router.Close())
		assert.NoError(p.t, <-ended)
		assert.NoError(p.t, retries.Close())
	})
	p.t.Cleanup(stop)
	return retries, stop
}

func (p onPostgres) publish(retries retry.Connection, topic string, ids ...string) {
	p.t.Helper()
	for _, id := range ids {
		require.NoError(p.t, retries.Publisher().Publish(topic, message.NewMessage(id, []byte(id))))
	}
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

// calls are those of a handler, by message.
type calls struct {
	mu  sync.Mutex
	all map[string][]*message.Message
}

func (c *calls) add(msg *message.Message) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[string][]*message.Message{}
	}
	c.all[msg.UUID] = append(c.all[msg.UUID], msg)
	return len(c.all[msg.UUID])
}

func (c *calls) of(id string) []*message.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[id]
}

func (c *calls) ids() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

// eventually waits until something is so. Where it is not, the table is shown.
func (p onPostgres) eventually(what string, is func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			var rows string
			_ = p.db.QueryRow(`SELECT string_agg(concat_ws(' ', id, topic, due::text, takes, uuid), E'\n' ORDER BY id)
				FROM retry_messages`).Scan(&rows)
			require.Fail(p.t, what, rows)
		}
	}
}

// Processes that start at the same time make the tables once. An app that may not create tables finds those of an
// operator, and its error names what the operator has left out. A table of another kind is refused.
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
	require.ErrorContains(t, err, `missing, "app"."retries", "app"."retries_handlers", "app"."retries_take"(`)
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
	require.ErrorContains(t, err, `missing, "app"."retries_take"(text[], integer[], bigint[], bigint), `+
		`"app"."retries_ack"(bigint[], text[]): execute postgresretry.Schema as a user who may, `)
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
}

// With each driver, what a copy has is what the message had, also where PostgreSQL's own types could not have it. A row that another
// program has inserted stops no other.
func TestPostgresKeepsEveryByte(t *testing.T) {
	for name, open := range map[string]func(url string) (*sql.DB, error){
		"pgx": func(url string) (*sql.DB, error) { return sql.Open("pgx", url) },
		"pgx without prepared statements": func(url string) (*sql.DB, error) {
			return sql.Open("pgx", url+"&default_query_exec_mode=describe_exec")
		},
		"pgx with another isolation": func(url string) (*sql.DB, error) {
			return sql.Open("pgx", url+"&default_transaction_isolation=serializable")
		},
		"pq": func(url string) (*sql.DB, error) { return sql.Open("postgres", url) },
	} {
		t.Run(name, func(t *testing.T) {
			p := startPostgres(t)
			db, err := open(p.url)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			keepsEveryByte(t, p, db)
		})
	}
}

func keepsEveryByte(t *testing.T, p onPostgres, db *sql.DB) {
	t.Helper()
	var got calls
	config := p.config()
	config.DB = db
	retries, _ := p.app(config, func(msg *message.Message) error {
		got.add(msg)
		return errors.New("down")
	})
	odd := message.NewMessage("odd", []byte{0, 0xff, '\\', '"'})
	odd.Metadata = message.Metadata{"nul": "a\x00b", "\xff": "\xfe", "quotes": `"\{},`, "": ""}
	require.NoError(t, retries.Publisher().Publish("retry.return.billing.orders", odd))
	p.publish(retries, "orders", ids(40)...) // in batches
	p.exec(`INSERT INTO retry_messages (topic, due, uuid, payload, metadata)
		VALUES ('retry.return.billing.orders', now() - interval '1 hour', 'foreign', '', '[1, {"a": null}]')`)
	store := p.store(config)
	p.eventually("all are dead letters", func() bool {
		return p.count(`SELECT count(*) FROM retry_messages WHERE due = 'infinity'`) == 42
	})
	for _, msg := range got.of("odd") {
		assert.Equal(t, odd.Payload, msg.Payload)
		for key, value := range odd.Metadata {
			assert.Equal(t, value, msg.Metadata[key], "%q", key)
		}
	}
	assert.Len(t, got.of("odd"), 2)
	assert.Len(t, got.of("foreign"), 2)
	p.eventually("nothing is left", func() bool {
		return p.count(`SELECT count(*) FROM retry_messages WHERE due < 'infinity'`) == 0
	})
	for _, letter := range browse(t, store, deadOrders) {
		if letter.ID == "odd" {
			assert.Equal(t, map[string]string(odd.Metadata), map[string]string(letter.Metadata))
			assert.Equal(t, []byte(odd.Payload), letter.Payload)
		}
	}
}

// Copies that are stored in one statement do not fail with one that PostgreSQL refuses.
func TestPostgresRefusesOneCopy(t *testing.T) {
	p := startPostgres(t)
	retries, err := postgresretry.Connect(p.config(), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, retries.Close()) }()
	var all sync.WaitGroup
	failed := make([]error, 200)
	for i := range failed {
		all.Go(func() {
			id := fmt.Sprint(i)
			if i%50 == 7 {
				id += "\xff" // no text
			}
			failed[i] = retries.Publisher().Publish("retry.return.x", message.NewMessage(id, nil))
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
	retries, err := postgresretry.Connect(config, nil)
	require.NoError(t, err)
	p.publish(retries, "retry.return.billing.orders", "1")
	taken := time.Now()
	p.exec(`UPDATE retry_messages SET due = clock_timestamp() + interval '2 seconds', takes = 1`) // taken by a process
	require.NoError(t, retries.Close())
	handled := make(chan time.Time, 10)
	p.app(config, func(*message.Message) error {
		handled <- time.Now()
		return nil
	})
	assert.GreaterOrEqual(t, (<-handled).Sub(taken), 2*time.Second)
	p.eventually("it is deleted", func() bool { return p.count(`SELECT count(*) FROM retry_messages`) == 0 })
	assert.Empty(t, handled)
}

// A handler learns that another process has its message: the context of the message ends at the next renewal.
func TestPostgresContextOfALostLease(t *testing.T) {
	p := startPostgres(t)
	config := p.config()
	config.Lease = time.Second
	entered, ended := make(chan struct{}), make(chan struct{})
	retries, _ := p.app(config, func(msg *message.Message) error {
		close(entered)
		<-msg.Context().Done()
		close(ended)
		return nil
	})
	p.publish(retries, "orders", "1")
	for _, event := range []chan struct{}{entered, ended} {
		select {
		case <-event:
		case <-time.After(patience):
			require.Fail(t, "the context has not ended")
		}
		p.exec(`UPDATE retry_messages SET takes = takes + 1, due = clock_timestamp() + interval '1 hour'`)
	}
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
	config := p.config()
	config.DB, config.Lease = stdlib.OpenDB(*parsed), time.Second
	t.Cleanup(func() { require.NoError(t, config.DB.Close()) })
	retries, _ := p.app(config, func(*message.Message) error {
		stopped.on.Store(true) // the renewal is the next one
		<-stopped.thaws        // after the end of its context, it could be settled before another process has it
		return nil
	})
	t.Cleanup(func() { close(stopped.thaws) })
	p.publish(retries, "orders", "1")
	p.eventually("it stands still", func() bool { return stopped.count.Load() > 0 })

	config.DB = p.open()
	var got calls
	p.app(config, func(msg *message.Message) error { got.add(msg); return nil })
	p.eventually("the other process has the message", func() bool { return len(got.of("1")) > 0 })
}

// A connection that breaks in the middle costs no message.
func TestPostgresConnectionsAreCut(t *testing.T) {
	p := startPostgres(t)
	const messages = 500
	var got calls
	config := p.config()
	config.DB, config.Lease = p.open(), time.Second
	retries, _ := p.app(config, func(msg *message.Message) error {
		if record, _ := retry.ReadRecord(msg.Metadata); record.Failures == 0 {
			return errors.New("down")
		}
		got.add(msg)
		return nil
	})
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		for range 20 {
			_, _ = p.db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid()`)
			time.Sleep(50 * time.Millisecond)
		}
	}()
	for _, id := range ids(messages) {
		for retries.Publisher().Publish("orders", message.NewMessage(id, nil)) != nil {
			time.Sleep(time.Millisecond)
		}
	}
	<-cut
	p.eventually("all come back", func() bool { return got.ids() == messages })
	p.eventually("nothing is left", func() bool { return p.count(`SELECT count(*) FROM retry_messages`) == 0 })
}

// statements counts those of a database.
type statements struct{ n atomic.Int64 }

func (s *statements) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData,
) context.Context {
	s.n.Add(1)
	return ctx
}

func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// An idle process executes few statements, whatever the number of its handlers.
func TestPostgresIdleProcess(t *testing.T) {
	p := startPostgres(t)
	var seen statements
	parsed, err := pgx.ParseConfig(p.url)
	require.NoError(t, err)
	parsed.Tracer = &seen
	config := p.config()
	config.DB = stdlib.OpenDB(*parsed)
	defer func() { require.NoError(t, config.DB.Close()) }()
	retries, err := postgresretry.Connect(config, watermill.NopLogger{})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	for i := range 20 {
		retries.AddConsumerHandler(router, fmt.Sprint("handler", i), fmt.Sprint("topic", i),
			func(*message.Message) error { return nil })
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	reads := func() (n int64, during time.Duration) {
		began, before := time.Now(), seen.n.Load()
		time.Sleep(3 * time.Second) // what is measured
		return seen.n.Load() - before, time.Since(began)
	}
	reads() // the first reads of each topic
	n, during := reads()
	t.Logf("%d statements in %v", n, during)
	assert.LessOrEqual(t, float64(n), 8+18*during.Seconds())
	assert.Positive(t, n)
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	require.NoError(t, retries.Close())
}

// A topic whose table is gone stops no other.
func TestPostgresBrokenTopicStopsNoOther(t *testing.T) {
	p := startPostgres(t)
	retries, err := postgresretry.Connect(p.config(), watermill.NopLogger{})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	var seen calls
	for name, topic := range map[string]string{"bill": "orders", "mail": "mails"} {
		retries.AddConsumerHandler(router, name, topic, func(msg *message.Message) error {
			if seen.add(msg) == 1 {
				return errDown
			}
			return nil
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	p.exec(`DROP TABLE watermill_mails`)
	for i := range 20 {
		id := fmt.Sprint(i)
		p.publish(retries, "orders", id)
		p.eventually(id, func() bool { return len(seen.of(id)) == 2 })
	}
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	require.NoError(t, retries.Close())
}

// While another process has locked the group's offset, it is not known whether there are messages: the topic is read
// again soon, and not once a second, as a topic without messages.
func TestPostgresLockedOffset(t *testing.T) {
	p := startPostgres(t)
	var got calls
	retries, _ := p.app(p.config(), func(msg *message.Message) error {
		got.add(msg)
		return nil
	})
	idle, err := retries.Subscriber("idle")
	require.NoError(t, err)
	_, err = idle.Subscribe(t.Context(), "idle")
	require.NoError(t, err)
	p.publish(retries, "orders", "1")
	p.eventually("it is handled", func() bool { return got.ids() == 1 })
	tx, err := p.db.Begin()
	require.NoError(t, err)
	_, err = tx.Exec(`SELECT 1 FROM watermill_offsets_orders FOR UPDATE`)
	require.NoError(t, err)
	p.publish(retries, "orders", "2")
	reads := func(topic string) int {
		return p.count(`SELECT seq_scan + COALESCE(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = $1`,
			"watermill_offsets_"+topic)
	}
	locked, empty := reads("orders"), reads("idle")
	p.eventually("it is read", func() bool { return reads("orders") >= locked+30 && reads("idle") > empty })
	t.Logf("read %d times, and the idle one %d times", reads("orders")-locked, reads("idle")-empty)
	assert.Greater(t, reads("orders")-locked, 2*(reads("idle")-empty))
	require.NoError(t, tx.Commit())
	p.eventually("it is handled", func() bool { return got.ids() == 2 })
}

// Fewer connections than handlers that run: none is kept by a handler.
func TestPostgresNeedsFourConnections(t *testing.T) {
	p := startPostgres(t)
	config := p.config()
	config.DB.SetMaxOpenConns(4)
	const inFlight = 64
	var got calls
	all := make(chan struct{})
	retries, _ := p.app(config, func(msg *message.Message) error {
		if got.add(msg) == 1 && got.ids() == inFlight {
			close(all)
		}
		<-all
		if len(got.of(msg.UUID)) == 1 {
			return errors.New("down")
		}
		return nil
	}, retry.Options{Concurrency: inFlight})
	p.publish(retries, "orders", ids(inFlight)...)
	p.eventually("all are in flight, and come back", func() bool {
		for _, id := range ids(inFlight) {
			if len(got.of(id)) != 2 {
				return false
			}
		}
		return true
	})
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
			in, err := subscriber.Subscribe(t.Context(), "orders")
			require.NoError(t, err)
			var got calls
			retries, _ := p.app(p.config(), func(msg *message.Message) error {
				if got.add(msg) == 1 {
					return errors.New("down")
				}
				return nil
			})
			text := `{"order": 1}`
			for _, publisher := range []message.Publisher{stock, retries.Publisher()} {
				msg := message.NewMessage(fmt.Sprintf("%T", publisher)[:10], []byte(text))
				msg.Metadata.Set("key", "value")
				require.NoError(t, publisher.Publish("orders", msg))
				other := <-in
				assert.Equal(t, msg.UUID, other.UUID)
				assert.JSONEq(t, text, string(other.Payload))
				other.Ack()
				p.eventually("it is retried", func() bool { return len(got.of(msg.UUID)) == 2 })
				again := got.of(msg.UUID)[1]
				assert.JSONEq(t, text, string(again.Payload))
				assert.Equal(t, "value", again.Metadata["key"])
			}
			select {
			case msg := <-in:
				assert.Fail(t, "the other service got a retry", msg.UUID)
			default:
			}
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

// Topics that would share a table are refused, and so is one that an app publishes to.
func TestPostgresLongTopics(t *testing.T) {
	p := startPostgres(t)
	retries, err := postgresretry.Connect(p.config(), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, retries.Close()) }()
	err = retries.Publisher().Publish(strings.Repeat("t", 54), message.NewMessage("1", nil))
	require.ErrorContains(t, err, "use a topic of at most 53 bytes")
	router := message.NewDefaultRouter(watermill.NopLogger{})
	retries.AddConsumerHandler(router, "bill", strings.Repeat("t", 46), func(*message.Message) error { return nil })
	require.ErrorContains(t, router.Run(t.Context()), "use a topic of at most 45 bytes")
}
