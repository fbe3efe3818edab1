package backends

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/servers"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
)

const (
	testLease = 5 * time.Second // of the locks in tests
	deadBill  = "retry.dead.bill"
)

var letterApp = App{Prefix: "retry", Lease: testLease}

// letterTests are backends whose dead-letter topics are tested without a Store.
var letterTests = []struct {
	name  string
	start func(context.Context) (*servers.Server, error)
	open  func(string, watermill.LoggerAdapter) Backend
	steal func(t *testing.T, url string) // takes all locks away
}{
	{"NATS JetStream", servers.NATS, NATS, func(t *testing.T, url string) {
		connection, err := nats.Connect(url)
		require.NoError(t, err)
		defer connection.Close()
		js, err := connection.JetStream()
		require.NoError(t, err)
		require.NoError(t, js.PurgeStream("KV_"+lockBucket("retry")))
	}},
	{"Redis Streams", servers.Redis, Redis, func(t *testing.T, url string) {
		client := redis.NewClient(&redis.Options{Addr: url})
		require.NoError(t, client.Del(t.Context(), "watermill-retry.lock:"+deadBill).Err())
		require.NoError(t, client.Close())
	}},
	{"PostgreSQL", servers.PostgreSQL, Postgres, endSessions},
}

// reading returns the Reader of a backend.
func reading(t *testing.T, backend Backend) relayletters.Reader {
	t.Helper()
	reader, err := backend.(relayed).reader(letterApp)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, reader.Close()) })
	return reader
}

func endSessions(t *testing.T, url string) {
	db, err := postgres{url: url}.open()
	require.NoError(t, err)
	_, err = db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'`)
	require.NoError(t, err)
	require.NoError(t, db.Close())
}

func TestLetterTopics(t *testing.T) {
	t.Parallel()
	for _, test := range letterTests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			server, err := test.start(ctx)
			require.NoError(t, err)
			t.Cleanup(server.Stop)
			backend := test.open(server.URL, watermill.NopLogger{})
			topics := reading(t, backend)
			_, err = topics.End(ctx, deadBill)
			require.ErrorIs(t, err, letters.ErrNoQueue)

			retryTwo(t, backend, soon)() // its handler subscribes
			has, err := topics.HasHandler(ctx, "retry.return.bill")
			require.NoError(t, err)
			assert.True(t, has)
			has, err = topics.HasHandler(ctx, "retry.return.gone")
			require.NoError(t, err)
			assert.False(t, has)

			publisher, err := backend.(relayed).publisher(letterApp)
			require.NoError(t, err)
			publish := func(from, to int) {
				for i := from; i < to; i++ {
					require.NoError(t, publisher.Publish(deadBill, message.NewMessage(fmt.Sprint(i), []byte{byte(i)})))
					require.NoError(t, publisher.Publish("retry.dead.other", message.NewMessage("other", nil)))
				}
			}
			publish(0, 10)
			end, err := topics.End(ctx, deadBill)
			require.NoError(t, err)
			assert.Equal(t, 10, end.Count)
			publish(10, 13)

			read := func(after, until string, limit int) (ids string, positions []string) {
				t.Helper()
				found, err := topics.Read(ctx, deadBill, after, until, limit)
				require.NoError(t, err)
				for _, one := range found {
					ids += one.Message.UUID + " "
					positions = append(positions, one.Position)
				}
				return ids, positions
			}
			ids, positions := read("", end.Position, 4)
			assert.Equal(t, "0 1 2 3 ", ids)
			ids, _ = read(positions[3], end.Position, 4)
			assert.Equal(t, "4 5 6 7 ", ids)
			ids, all := read("", end.Position, 100)
			assert.Equal(t, "0 1 2 3 4 5 6 7 8 9 ", ids)
			ids, _ = read(all[9], end.Position, 4)
			assert.Empty(t, ids)
			ids, _ = read(end.Position, "", 100)
			assert.Equal(t, "10 11 12 ", ids)
			ids, _ = read(end.Position, "", 2)
			assert.Equal(t, "10 11 ", ids)

			for _, position := range []string{all[9], all[0], all[4], all[4]} { // one twice: it is gone
				require.NoError(t, topics.Remove(ctx, deadBill, position))
			}
			ids, _ = read("", "", 100)
			assert.Equal(t, "1 2 3 5 6 7 8 10 11 12 ", ids)
			end, err = topics.End(ctx, deadBill)
			require.NoError(t, err)
			assert.Equal(t, 10, end.Count)
			require.NoError(t, publisher.Close())
		})
	}
}

// TestLetterLocks: a lock is held for as long as its process renews it, and its loss is seen.
func TestLetterLocks(t *testing.T) {
	t.Parallel()
	for _, test := range letterTests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			server, err := test.start(ctx)
			require.NoError(t, err)
			t.Cleanup(server.Stop)
			backend := test.open(server.URL, watermill.NopLogger{})
			first, second := reading(t, backend), reading(t, backend)

			held, release, err := first.Lock(ctx, deadBill)
			require.NoError(t, err)
			for until := time.Now().Add(testLease * 3 / 2); time.Now().Before(until); time.Sleep(200 * time.Millisecond) {
				_, _, err = second.Lock(ctx, deadBill)
				require.ErrorIs(t, err, letters.ErrBusy)
			}
			_, other, err := second.Lock(ctx, "retry.dead.other")
			require.NoError(t, err)
			other()
			require.NoError(t, held.Err())
			release()
			require.ErrorIs(t, held.Err(), context.Canceled)

			held, release, err = second.Lock(ctx, deadBill)
			require.NoError(t, err)
			test.steal(t, server.URL)
			select {
			case <-held.Done():
				require.ErrorContains(t, context.Cause(held), "is lost")
			case <-time.After(time.Minute):
				require.Fail(t, "the loss of the lock is not seen")
			}
			release()
			_, release, err = first.Lock(ctx, deadBill)
			require.NoError(t, err)
			release()
		})
	}
}

// TestAnAppWithoutAPrefix has that of the relay. PostgreSQL tells by it what must wait.
func TestAnAppWithoutAPrefix(t *testing.T) {
	t.Parallel()
	server, err := servers.PostgreSQL(t.Context())
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	backend := Postgres(server.URL, watermill.NopLogger{})
	assert.Equal(t, deadBill, backend.QueueOf(App{}, "bill", "orders"))
	const delay = time.Second
	begin := time.Now()
	retryTwo(t, backend, App{Schedule: backoff.Schedule{delay}})()
	assert.GreaterOrEqual(t, time.Since(begin), 2*delay, "one after the other")
}
