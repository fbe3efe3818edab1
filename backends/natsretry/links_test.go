package natsretry

import (
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
	q := &queue{server: &server{Config: Config{Conn: conn}}, links: l, inbox: "inbox", pulls: 1, asked: 1}
	for _, subject := range []string{"orders", q.answer()} {
		require.NoError(t, q.receive(ctx, &nats.Msg{Subject: subject, Header: nats.Header{"Status": {"404"}}}))
		health := list.Health()[0]
		assert.False(t, health.Consuming)
		assert.Equal(t, `cannot read "orders": the connection to NATS is lost`, health.LastError)
	}
}
