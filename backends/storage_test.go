package backends

import (
	"context"
	stdsql "database/sql"
	"errors"
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
	"github.com/tieredretry/watermill-retry/retry"
)

// TestStorageOfTiers checks the column on storage in docs/other-pubsubs.md: what is left of messages that have been retried and
// acknowledged. There are two, one after the other: when the second is delivered, the first is acknowledged on the server too.
func TestStorageOfTiers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		start  func(context.Context) (*servers.Server, error)
		open   func(string, watermill.LoggerAdapter) Backend
		stored func(t *testing.T, url string) map[string]int64
		want   map[string]int64
	}{
		{"NATS JetStream", servers.NATS, NATS, storedByNATS, map[string]int64{"retry": 0}},
		{"Redis Streams", servers.Redis, Redis, storedByRedis, map[string]int64{"retry.100ms": 2, "retry.return.bill": 2}},
		{"PostgreSQL", servers.PostgreSQL, Postgres, storedByPostgres, map[string]int64{"retry.return.bill": 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server, err := test.start(t.Context())
			require.NoError(t, err)
			t.Cleanup(server.Stop)
			stop := retryTwo(t, test.open(server.URL, watermill.NopLogger{}), soon)
			defer stop()
			assert.EventuallyWithT(t, func(c *assert.CollectT) {
				assert.Equal(c, test.want, test.stored(t, server.URL))
			}, 20*time.Second, 50*time.Millisecond)
		})
	}
}

// soon is an app whose retries come soon.
var soon = App{Group: "billing", Prefix: "retry", Schedule: backoff.Schedule{100 * time.Millisecond}}

// retryTwo starts an app and publishes two messages, each when the one before it has been retried.
func retryTwo(t *testing.T, backend Backend, app App) (stop func()) {
	t.Helper()
	retries, err := backend.Connect(app)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	tries := make(chan *message.Message)
	retries.AddConsumerHandler(router, "bill", "orders", func(msg *message.Message) error {
		tries <- msg
		if record, _ := retry.ReadRecord(msg.Metadata); record.Failures == 0 {
			return errors.New("the service is down")
		}
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(t.Context()) }()
	<-router.Running()
	for _, id := range []string{"1", "2"} {
		require.NoError(t, retries.Publisher().Publish("orders", message.NewMessage(id, nil)))
		take(t, tries)
		take(t, tries)
	}
	return func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
		require.NoError(t, retries.Close())
	}
}

func storedByNATS(t *testing.T, url string) map[string]int64 {
	t.Helper()
	connection, err := nats.Connect(url)
	require.NoError(t, err)
	defer connection.Close()
	js, err := connection.JetStream()
	require.NoError(t, err)
	info, err := js.StreamInfo("retry")
	require.NoError(t, err)
	return map[string]int64{"retry": int64(info.State.Msgs)}
}

func storedByRedis(t *testing.T, url string) map[string]int64 {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: url})
	defer func() { require.NoError(t, client.Close()) }()
	stored := map[string]int64{}
	streams, err := client.Keys(t.Context(), "retry.*").Result()
	require.NoError(t, err)
	for _, stream := range streams {
		stored[stream], err = client.XLen(t.Context(), stream).Result()
		require.NoError(t, err)
	}
	return stored
}

func storedByPostgres(t *testing.T, url string) map[string]int64 {
	t.Helper()
	db, err := stdsql.Open("pgx", url)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	rows, err := db.Query(`SELECT substr(tablename, 11) FROM pg_tables WHERE starts_with(tablename, 'watermill_retry.')`)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	var topics []string
	for rows.Next() {
		var topic string
		require.NoError(t, rows.Scan(&topic))
		topics = append(topics, topic)
	}
	require.NoError(t, rows.Err())
	stored := map[string]int64{}
	for _, topic := range topics {
		var count int64
		require.NoError(t, db.QueryRow(fmt.Sprintf(`SELECT count(*) FROM "watermill_%s"`, topic)).Scan(&count))
		stored[topic] = count
	}
	return stored
}
