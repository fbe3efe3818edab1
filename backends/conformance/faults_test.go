package conformance

import (
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/letters"
)

// These are what happens to a server, by the backend. Not every server can do everything.
var (
	cutsConnections = map[string]func(f *fixture){ // of all clients
		"redis": func(f *fixture) {
			require.NoError(f.t, f.redis().ClientKillByFilter(noContext, "TYPE", "normal", "SKIPME", "yes").Err())
		},
		"postgres": func(f *fixture) {
			f.sql(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()`)
		},
	}
	breaksTopic = map[string]func(f *fixture, topic string){
		"redis": func(f *fixture, topic string) {
			require.NoError(f.t, f.redis().Set(noContext, topic, "no stream", 0).Err())
		},
		"postgres": func(f *fixture, topic string) { f.sql(`DROP TABLE "watermill_` + topic + `"`) },
	}
	mendsTopic = map[string]func(f *fixture, topic string){ // the next publisher makes it
		"redis":    func(f *fixture, topic string) { require.NoError(f.t, f.redis().Del(noContext, topic).Err()) },
		"postgres": func(*fixture, string) {},
	}
	takesMessage = map[string]func(f *fixture, prefix, group, topic string){ // that is in flight, for another process
		"redis": func(f *fixture, prefix, group, topic string) {
			client := f.redis()
			for _, owners := range client.Keys(noContext, prefix+".return.*:owners").Val() {
				for id := range client.HGetAll(noContext, owners).Val() {
					require.NoError(f.t, client.HSet(noContext, owners, id, "other").Err())
				}
			}
			for _, one := range client.XPendingExt(noContext, &redis.XPendingExtArgs{
				Stream: topic, Group: group, Start: "-", End: "+", Count: 10,
			}).Val() {
				require.NoError(f.t, client.XClaim(noContext, &redis.XClaimArgs{
					Stream: topic, Group: group, Consumer: "other", Messages: []string{one.ID},
				}).Err())
			}
		},
		"postgres": func(f *fixture, prefix, _, _ string) {
			f.sql(`UPDATE retry_messages SET takes = takes + 1, due = clock_timestamp() + interval '1 hour'
				WHERE starts_with(topic, '` + prefix + `')`)
		},
	}
	losesLock = map[string]func(f *fixture, prefix, queue string){ // of the dead letters
		"redis": func(f *fixture, prefix, queue string) {
			require.EqualValues(f.t, 1, f.redis().Del(noContext, prefix+".lock:"+queue).Val())
		},
		"postgres": func(f *fixture, _, _ string) {
			f.sql(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'`)
		},
		"nats": func(f *fixture, prefix, _ string) {
			conn, err := nats.Connect(f.url)
			require.NoError(f.t, err)
			defer conn.Close()
			js, err := jetstream.New(conn)
			require.NoError(f.t, err)
			stream, err := js.Stream(noContext, "KV_"+prefix+"-locks")
			require.NoError(f.t, err)
			require.NoError(f.t, stream.Purge(noContext))
		},
	}
)

func (f *fixture) redis() *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: f.url})
	f.t.Cleanup(func() { assert.NoError(f.t, client.Close()) })
	return client
}

func (f *fixture) sql(statement string) {
	f.t.Helper()
	db, err := sql.Open("pgx", f.url)
	require.NoError(f.t, err)
	defer func() { assert.NoError(f.t, db.Close()) }()
	_, err = db.Exec(statement)
	require.NoError(f.t, err)
}

// cutUntil closes the connections of all clients some times, until something is so.
func (f *fixture) cutUntil(words string, is func() bool) {
	f.t.Helper()
	cut, cuts := cutsConnections[f.Name], 0
	wait.Until(f.t, func() bool {
		if is() {
			return true
		}
		if cuts++; cut != nil && cuts%5 == 0 && cuts < 100 {
			cut(f)
		}
		return false
	}, "%s", words)
}

// lockLost: a redrive keeps its lock for longer than the lease, and ends when it is lost. No letter is.
func lockLost(t *testing.T, f *fixture) {
	lose := losesLock[f.Name]
	if lose == nil {
		return
	}
	f = newFixture(t, f.Entry, startServer(t, f.Entry).URL)
	o := f.outage()
	o.app.Lease = 5 * time.Second
	store, other := o.open(), o.open()
	f.run(o.app, o.topics, o.handle)
	o.kill(store, ids(20))
	o.recover()
	longer, ended := make(chan struct{}), make(chan error, 1)
	lasts := sync.OnceFunc(func() { close(longer) })
	go func() {
		_, err := store.Redrive(noContext, o.queue, letters.Redrive{Rate: 1, Progress: func(p letters.Progress) {
			if p.Done >= 7 {
				lasts()
			}
		}})
		ended <- err
	}()
	wait.For(t, longer, "the redrive takes longer than the lease")
	_, err := other.Redrive(noContext, o.queue, letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrBusy)
	require.ErrorContains(t, err, ": wait until that redrive or discard has ended; the lock of one ")
	lose(f, o.app.Prefix, o.queue)
	require.ErrorContains(t, wait.For(t, ended, "the redrive ends"), "is lost")
	_, err = other.Redrive(noContext, o.queue, letters.Redrive{})
	require.NoError(t, err)
	o.awaitHandled(ids(20))
	left, _, _ := o.browse(other, letters.Filter{})
	assert.Empty(t, left)
}

// givesBack: what is in flight at a shutdown, a message of the topic and a retry, goes to another process at once, and
// not at the end of its lease.
func givesBack(t *testing.T, f *fixture) {
	if !f.Expect.Leases() {
		return
	}
	topics, config := f.topics(1), f.app(100*time.Millisecond)
	config.Lease = time.Hour
	runs, release := make(chan struct{}, 10), make(chan struct{})
	defer close(release)
	first := f.run(config, topics, func(msg *message.Message) error {
		if one := f.ledger.add(msg); one.id == "retried" && one.failures == 0 {
			return errDown
		}
		runs <- struct{}{}
		<-release
		return nil
	})
	f.publish(topics, "1", "retried")
	wait.For(t, runs, "a call runs")
	wait.For(t, runs, "both calls run")
	second := newLedger()
	f.run(config, topics, second.failing(0))
	go func() { _ = first.Close() }()
	second.await(t, 2, 0)
	f.nothingIsLeft(config, topics)
}

// brokenTopic: a topic that cannot be read stops no other of its group. It is read when it is there again.
func brokenTopic(t *testing.T, f *fixture) {
	if breaksTopic[f.Name] == nil {
		return
	}
	topics := []string{f.topic(0), f.topic(1)}
	a := f.run(f.app(100*time.Millisecond), topics, f.ledger.failing(1))
	f.publish(topics, "one", "other")
	f.await(2, 1)
	breaksTopic[f.Name](f, topics[1])
	for i, id := range ids(20) {
		a.publishTo(topics[0], id)
		f.await(3+i, 1)
	}
	mendsTopic[f.Name](f, topics[1])
	f.publish(topics[1:], "again")
	f.await(23, 1)
}

// leaseLost: a handler learns that another process has its message, or its retry: the context of the message ends at the
// next renewal.
func leaseLost(t *testing.T, f *fixture) {
	take := takesMessage[f.Name]
	if take == nil {
		return
	}
	for _, failures := range []int{0, 1} {
		f := newFixture(t, f.Entry, f.url)
		topics, config := f.topics(1), f.app(100*time.Millisecond)
		config.Lease = 5 * time.Second
		runs, ended := make(chan struct{}), make(chan struct{})
		f.run(config, topics, func(msg *message.Message) error {
			if err := f.ledger.failing(failures)(msg); err != nil {
				return err
			}
			close(runs)
			<-msg.Context().Done()
			close(ended)
			return nil
		})
		f.publish(topics, "1")
		wait.For(t, runs, "the call runs")
		take(f, config.Prefix, config.Group, topics[0])
		wait.For(t, ended, "its context ends")
	}
}
