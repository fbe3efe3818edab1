package natsretry

import (
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/subscriptions"
)

// A message that came before the connection was lost does not show that there is one.
func TestHealthOfALostConnection(t *testing.T) {
	t.Parallel()
	conn, err := nats.Connect("nats://127.0.0.1:1", nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	l := newLinks(conn)
	t.Cleanup(l.close)
	var list subscriptions.List
	ctx := list.Begin("bill", "orders").Report(t.Context(), "orders")
	l.read(ctx)
	q := &queue{server: &server{Config: Config{Conn: conn, Prefix: "retry"}}, links: l}
	for _, read := range []func(){
		func() { q.taken(ctx, []*nats.Msg{{Subject: "orders"}}) },
		func() { require.NoError(t, q.heed(ctx, &nats.Msg{Header: nats.Header{"Status": {"404"}}})) },
	} {
		read()
		health := list.Health()[0]
		assert.False(t, health.Consuming)
		assert.Equal(t, `cannot read "orders": the connection to NATS is lost`, health.LastError)
	}
}

// What waits for a connection ends when its app closes that for good.
func TestConnectionIsClosedWhileItIsLost(t *testing.T) {
	t.Parallel()
	conn, err := nats.Connect("nats://127.0.0.1:1", nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
	require.NoError(t, err)
	l := newLinks(conn)
	t.Cleanup(l.close)
	_, err = l.live(asked{t.Context(), sync.OnceFunc(conn.Close)})
	require.ErrorContains(t, err, "the connection to NATS is closed")
}
