package backends

import (
	"context"
	stdsql "database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/servers"
)

// These tests show the faults of Watermill's own Pub/Subs for which this package has a workaround. When a test fails, its fault is
// gone, and the workaround can be removed.

const gone = "the fault is gone: remove its workaround"

func startPostgres(t *testing.T, settings string) (*stdsql.DB, string) {
	t.Helper()
	server, err := servers.PostgreSQL(t.Context())
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	db, err := stdsql.Open("pgx", server.URL+settings)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db, server.URL
}

// delayedPubSub is watermill-sql's own delayed Pub/Sub.
func delayedPubSub(t *testing.T, db *stdsql.DB) (message.Publisher, message.Subscriber) {
	t.Helper()
	publisher, err := sql.NewDelayedPostgreSQLPublisher(sql.BeginnerFromStdSQL(db), sql.DelayedPostgreSQLPublisherConfig{})
	require.NoError(t, err)
	subscriber, err := sql.NewDelayedPostgreSQLSubscriber(sql.BeginnerFromStdSQL(db), sql.DelayedPostgreSQLSubscriberConfig{DeleteOnAck: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = subscriber.Close() })
	return publisher, subscriber
}

func delayed(id string, wait time.Duration) *message.Message {
	msg := message.NewMessage(id, []byte("{}"))
	delay.Message(msg, delay.For(wait))
	return msg
}

func take(t *testing.T, in <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg := <-in:
		return msg
	case <-time.After(20 * time.Second):
		require.Fail(t, "no message")
		return nil
	}
}

func TestFaultDelayedBatchIsLost(t *testing.T) {
	t.Parallel()
	db, _ := startPostgres(t, "")
	publisher, subscriber := delayedPubSub(t, db)
	for i := range 10 {
		require.NoError(t, publisher.Publish("q", delayed(fmt.Sprint(i), -time.Minute)))
	}
	in, err := subscriber.Subscribe(context.Background(), "q")
	require.NoError(t, err)
	take(t, in).Ack()
	take(t, in) // in flight when the subscriber closes
	require.NoError(t, subscriber.Close())
	var left int
	require.NoError(t, db.QueryRow(`SELECT count(*) FROM "watermill_q"`).Scan(&left))
	assert.Zero(t, left, "of 9 that were not acknowledged; "+gone)
}

func TestFaultDelayedInAnotherTimeZone(t *testing.T) {
	t.Parallel()
	db, _ := startPostgres(t, "&timezone=America/New_York")
	publisher, subscriber := delayedPubSub(t, db)
	in, err := subscriber.Subscribe(context.Background(), "q")
	require.NoError(t, err)
	require.NoError(t, publisher.Publish("q", delayed("1", time.Hour)))
	select {
	case <-in:
	case <-time.After(5 * time.Second):
		assert.Fail(t, "not early: "+gone)
	}
}

func TestFaultNATSAcknowledgesByItself(t *testing.T) {
	t.Parallel()
	server, err := servers.NATS(t.Context())
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	stock := wmnats.JetStreamConfig{AutoProvision: true, DurablePrefix: "d"}
	publisher, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: server.URL, JetStream: stock}, watermill.NopLogger{})
	require.NoError(t, err)
	subscribe := func() (<-chan *message.Message, message.Subscriber) {
		subscriber, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{
			URL: server.URL, QueueGroupPrefix: "d", JetStream: stock, AckWaitTimeout: 500 * time.Millisecond,
		}, watermill.NopLogger{})
		require.NoError(t, err)
		in, err := subscriber.Subscribe(context.Background(), "orders")
		require.NoError(t, err)
		return in, subscriber
	}
	connection, err := nats.Connect(server.URL)
	require.NoError(t, err)
	t.Cleanup(connection.Close)
	js, err := connection.JetStream()
	require.NoError(t, err)
	settled := func() bool {
		info, err := js.ConsumerInfo("orders", "d")
		return err == nil && info.NumAckPending == 0 && info.NumPending == 0
	}

	in, subscriber := subscribe()
	require.NoError(t, publisher.Publish("orders", message.NewMessage("1", []byte("x"))))
	take(t, in) // and never acknowledged
	assert.Eventually(t, settled, 5*time.Second, 50*time.Millisecond, gone)

	require.NoError(t, subscriber.Close())
	in, subscriber = subscribe() // on a new consumer: the subscriber has deleted the old one
	assert.Equal(t, "1", take(t, in).UUID, gone)
	require.NoError(t, subscriber.Close())
	require.NoError(t, publisher.Close())
}

func TestTableNamesAreNotCut(t *testing.T) {
	_, err := waitingQueue.SchemaInitializingQueries(sql.SchemaInitializingQueriesParams{Topic: "retry.return." + strings.Repeat("h", 41)})
	require.ErrorContains(t, err, "64 bytes")
	_, err = waitingQueue.SchemaInitializingQueries(sql.SchemaInitializingQueriesParams{Topic: "retry.return." + strings.Repeat("h", 40)})
	require.NoError(t, err)
}
