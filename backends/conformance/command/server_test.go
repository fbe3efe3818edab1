package command

import (
	"bytes"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/backoff"
)

// many: the memory of the command does not depend on the number of letters.
func (o *operator) many(_, _ []string) {
	if o.entry.Expect.Letters == registry.BrowseLetters {
		return
	}
	const n, few = 10_000, 50
	if o.entry.Name == "postgres" { // the disk would take minutes
		db := o.postgres()
		_, err := db.Exec(`ALTER ROLE postgres SET synchronous_commit = off`)
		require.NoError(o.t, err)
		defer func() { _, _ = db.Exec(`ALTER ROLE postgres RESET synchronous_commit`) }()
	}
	failure := backoff.Permanent(errDown)
	o.failure.Store(&failure)
	var first []*message.Message
	for i := range few {
		first = append(first, message.NewMessage(fmt.Sprintf("many-%05d", i), bytes.Repeat([]byte("x"), 4096)))
	}
	o.publish(first...)
	o.eventually("they are dead", func() bool { return len(o.ids()) == few })
	o.failure.Store(nil)
	file := filepath.Join(o.t.TempDir(), "letters.jsonl")
	small := o.letters(0, "export", "-o", file)
	content, err := os.ReadFile(file)
	require.NoError(o.t, err)
	began := time.Now()
	all := &bytes.Buffer{}
	for i := range n / few {
		all.Write(bytes.ReplaceAll(content, []byte("many-"), fmt.Appendf(nil, "many-%04d-", i)))
	}
	require.NoError(o.t, os.WriteFile(file, all.Bytes(), 0o600))
	assert.Equal(o.t, few, o.change(0, "discard", "--yes").Done)
	imported := o.wmretry(0, "dead", "import", file)
	listed := o.letters(0, "list")
	assert.Equal(o.t, n+1, strings.Count(listed.stdout, "\n"))
	redriven := o.letters(0, "redrive")
	assert.Regexp(o.t, `(?m)^ +10,000  sent back, confirmed and removed$`, redriven.stdout)
	for before := 0; before < n; {
		o.eventually("more are handled", func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			handled := 0
			for id := range o.handled {
				if strings.HasPrefix(id, "many-") {
					handled++
				}
			}
			more := handled > before
			before = handled
			return more
		})
	}
	assert.Empty(o.t, o.ids())
	for verb, r := range map[string]result{"import": imported, "list": listed, "redrive": redriven} {
		assert.Less(o.t, r.memory, max(small.memory, 30<<10)+40<<10, "%s of %d letters of 4 KiB; %d KiB for %d", verb, n, small.memory, few)
		o.t.Logf("%s: %d KiB, an export of %d letters %d KiB", verb, r.memory, few, small.memory)
	}
	o.t.Logf("10,000 letters were imported, listed and redriven in %v", time.Since(began).Round(time.Millisecond))
}

// waits: the status shows what waits, and the doctor what is overdue, while no app runs. No canary is sent then.
func (o *operator) waits(stop func()) {
	file := filepath.Join(o.t.TempDir(), "letter.jsonl")
	redrives := o.entry.Expect.Letters != registry.BrowseLetters
	if redrives { // a letter for a canary
		broken := backoff.Permanent(errDown)
		o.failure.Store(&broken)
		o.publish(message.NewMessage("dead-0", []byte("{}")))
		o.awaitLetters("dead-0")
		o.change(0, "discard", "--yes", "--export", file)
	}
	o.failure.Store(&errDown)
	calls := o.called()
	for i := range 3 {
		o.publish(message.NewMessage(fmt.Sprintf("late-%d", i), []byte("{}")))
	}
	o.eventually("they have failed", func() bool { return o.called() >= calls+3 })
	stop()
	row := regexp.MustCompile(`(?m)^` + o.app.Group + `\.` + o.topic + ` +3 +3  \d{4}-\S+Z +0 `)
	if o.entry.Expect.Relayed {
		row = regexp.MustCompile(`(?m)^tier ` + tier + ` +3 +1  \d{4}-\S+Z +0 +0 `)
	}
	status := func() string { return row.FindString(o.wmretry(0, "status").stdout) }
	var last string
	o.eventually("the status has them", func() bool { last = status(); return last != "" })
	r := o.wmretry(1, "doctor")
	assert.Regexp(o.t, `(?m)^overdue `, r.stdout)
	assert.Equal(o.t, last, status(), "looking changes nothing")
	if redrives {
		o.wmretry(0, "dead", "import", file)
		fault := "nothing takes what is due for "
		if o.showsConsumers() {
			fault = " has no consumer"
			gone := regexp.MustCompile(`(?m)^` + o.app.Group + `\.` + o.topic + ` +\d+ +\d+  \S+ +\d+ +0 `)
			o.eventually("the app is gone", func() bool { return gone.MatchString(o.wmretry(0, "status").stdout) })
		}
		assert.Contains(o.t, o.letters(1, "redrive", "--canary", "1").stderr, fault)
		o.awaitLetters("dead-0")
	}
	o.failure.Store(nil)
	o.healthy.Store(true)
	again := o.run()
	o.awaitHandled("late-0", "late-1", "late-2")
	again()
}

func (o *operator) called() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls
}

// faults: the doctor finds what is wrong with the server.
func (o *operator) faults(_, _ []string) {
	found := func(rules ...string) {
		o.t.Helper()
		for _, rule := range rules {
			is := regexp.MustCompile(`(?m)^` + rule)
			o.eventually(rule, func() bool { return is.MatchString(o.wmretry(-1, "doctor", "--ignore", "overdue").stdout) })
			name, _, _ := strings.Cut(rule, " ")
			ignored := o.wmretry(-1, "doctor", "--ignore", "overdue,"+name)
			assert.NotRegexp(o.t, `(?m)^`+rule, ignored.stdout)
		}
	}
	ctx := o.t.Context()
	switch o.entry.Name {
	case "redis":
		client := o.redis()
		for _, setting := range [][2]string{{"maxmemory", "100mb"}, {"maxmemory-policy", "allkeys-lru"}, {"appendonly", "no"}} {
			require.NoError(o.t, client.ConfigSet(ctx, setting[0], setting[1]).Err())
		}
		found("eviction Redis", "persistence Redis")
		if o.showsConsumers() {
			found("consumers " + o.app.Group)
		} else {
			assert.NotRegexp(o.t, `(?m)^consumers`, o.wmretry(-1, "doctor").stdout)
		}
	case "nats":
		conn, err := nats.Connect(o.url)
		require.NoError(o.t, err)
		defer conn.Close()
		js, err := jetstream.New(conn)
		require.NoError(o.t, err)
		name, err := js.StreamNameBySubject(ctx, o.app.Prefix+".return.x")
		require.NoError(o.t, err)
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "copy", Sources: []*jetstream.StreamSource{{Name: name}}})
		require.NoError(o.t, err)
		stream, err := js.Stream(ctx, name)
		require.NoError(o.t, err)
		config := stream.CachedInfo().Config
		config.MaxAge = time.Hour
		_, err = js.UpdateStream(ctx, config)
		require.NoError(o.t, err)
		found("overlap stream copy", "limits stream "+name)
	case "postgres":
		db := o.postgres()
		for _, statement := range []string{
			`ALTER ROLE postgres SET statement_timeout = '10s'`, `ALTER ROLE postgres SET synchronous_commit = off`,
			`UPDATE "watermill_offsets_` + o.topic + `" SET last_processed_transaction_id = '4000000000'`,
		} {
			_, err := db.Exec(statement)
			require.NoError(o.t, err, statement)
		}
		found("timeouts PostgreSQL", "persistence PostgreSQL", "transaction-id topic "+o.topic)
		bouncer, err := servers.PgBouncer(ctx, o.url, "transaction", 4)
		require.NoError(o.t, err)
		defer bouncer.Stop()
		_, err = db.Exec(`CREATE ROLE viewer LOGIN`)
		require.NoError(o.t, err)
		itself := o.url
		for rule, address := range map[string]string{
			"pooler PostgreSQL": bouncer.URL, `grants "?retry_messages`: strings.Replace(itself, "postgres@", "viewer@", 1),
		} {
			o.url = address
			found(rule)
		}
		o.url = itself
		_, err = db.Exec(`DROP FUNCTION retry_messages_ack`)
		require.NoError(o.t, err)
		found(`schema function "retry_messages_ack`)
	case "kafka":
		admin, err := sarama.NewClusterAdmin([]string{strings.TrimPrefix(o.url, "kafka://")}, sarama.NewConfig())
		require.NoError(o.t, err)
		defer func() { _ = admin.Close() }()
		short := "60000"
		require.NoError(o.t, admin.AlterConfig(sarama.TopicResource, o.dead, map[string]*string{"retention.ms": &short}, false))
		require.NoError(o.t, admin.AlterConfig(sarama.TopicResource, o.app.Prefix+"."+tier, map[string]*string{"retention.bytes": &short}, false))
		found("retention topic "+regexp.QuoteMeta(o.dead), "retention topic "+o.app.Prefix+`\.`+tier)
	}
}

// showsConsumers reports whether the backend shows by its consumers that no app runs, and its letters can be redriven.
// Redis does not show an idle process before 7.2.
func (o *operator) showsConsumers() bool {
	if o.entry.Name == "redis" {
		server := o.redis().Info(o.t.Context(), "server").Val()
		return !regexp.MustCompile(`redis_version:([67]\.[01]|6)`).MatchString(server)
	}
	return o.entry.Name == "nats"
}

func (o *operator) redis() *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(o.url, "redis://")})
	o.t.Cleanup(func() { _ = client.Close() })
	return client
}

func (o *operator) postgres() *sql.DB {
	db, err := sql.Open("pgx", o.url)
	require.NoError(o.t, err)
	o.t.Cleanup(func() { _ = db.Close() })
	return db
}
