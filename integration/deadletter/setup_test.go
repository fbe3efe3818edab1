package deadletter_test

import (
	"bytes"
	"errors"
	"flag"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

const soon = 60 * time.Second // much longer than any of it takes

var errDown = errors.New("the bank is down")

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "6") // most of these tests wait for figures of the broker
	m.Run()
}

// open opens a store of the apps with this prefix.
func open(t testing.TB, uri, prefix string) *deadletter.Store {
	t.Helper()
	store, err := deadletter.Open(deadletter.Config{URI: uri, Prefix: prefix}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// list returns the letters of a queue, in their order.
func list(t testing.TB, store letters.Store, queue string) []*letters.Letter {
	t.Helper()
	var all []*letters.Letter
	for l, err := range store.Browse(t.Context(), queue, letters.Filter{}) {
		require.NoError(t, err)
		all = append(all, l)
	}
	return all
}

func ids(all []*letters.Letter) []string {
	ids := make([]string, len(all))
	for i, l := range all {
		ids[i] = l.ID
	}
	return ids
}

// upTo returns the IDs of testapp.Orders(n).
func upTo(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = testapp.ID(i)
	}
	return ids
}

// dead returns n dead letters of a work queue, as the middleware publishes them, with identities from 0.
func dead(queue string, n int) []amqp091.Publishing {
	all := testapp.Orders(n)
	for i := range all {
		metadata := message.Metadata{}
		at := time.Now().Add(-time.Minute)
		retry.Record{
			Failures: 1, FirstFailedAt: at, LastFailedAt: at, Topic: queue, Handler: queue + "/0", Reason: errDown.Error(),
			ErrorType: "*errors.errorString", DeadReason: retry.DeadReasonPermanent,
		}.Write(metadata)
		for key, value := range metadata {
			all[i].Headers[key] = value
		}
	}
	return all
}

// bury declares the topology of a work queue of an app, and publishes n dead letters of it.
func bury(t testing.TB, a *testapp.App, queue string, n int) {
	t.Helper()
	a.Declare(queue)
	testapp.Send(t, a.Name, "dead."+queue, dead(queue, n)...)
	require.Equal(t, n, testapp.Depth(t, deadletter.QueueOf(queue)))
}

// declare declares a queue of the test's own, with arguments.
func declare(t testing.TB, queue string, arguments amqp091.Table) {
	t.Helper()
	broker.Declare(t, func(channel *amqp091.Channel) error {
		_, err := channel.QueueDeclare(queue, true, false, false, false, arguments)
		return err
	})
}

// adds asserts that a summary adds up.
func adds(t testing.TB, s letters.Summary) {
	t.Helper()
	require.Equal(t, s.Total, s.Done+s.Other+s.Kept+s.Unseen, s)
}

// exported discards the letters of a queue and returns their lines.
func exported(t testing.TB, store *deadletter.Store, queue string) (*bytes.Buffer, error) {
	t.Helper()
	var file bytes.Buffer
	_, err := store.Discard(t.Context(), queue, letters.Discard{Export: &file})
	return &file, err
}
