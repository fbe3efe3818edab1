package wire_test

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// silent accepts one connection and does not answer. closed receives when the client has closed it.
func silent(t *testing.T) (address string, closed <-chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	done := make(chan struct{}, 1)
	go func() {
		peer, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, peer)
		_ = peer.Close()
		done <- struct{}{}
	}()
	return "amqp://guest:guest@" + listener.Addr().String() + "/", done
}

func TestSilentPeerIsNotWaitedFor(t *testing.T) {
	for name, row := range map[string]struct {
		query  string
		within time.Duration // the context
		text   string
	}{
		"by the address's timeout": {"?connection_timeout=100", time.Hour, "no answer within 100ms"},
		"by the context":           {"", 100 * time.Millisecond, ""},
	} {
		t.Run(name, func(t *testing.T) {
			address, closed := silent(t)
			ctx, cancel := context.WithTimeout(t.Context(), row.within)
			defer cancel()
			_, _, err := wire.Open(ctx, address+row.query, amqp091.Config{}, nil)
			require.ErrorContains(t, err, row.text)
			<-closed
		})
		t.Run(name+", with a dialer of the app's own", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), row.within)
				defer cancel()
				own := amqp091.Config{Dial: func(string, string) (net.Conn, error) {
					client, peer := net.Pipe()
					go func() { _, _ = io.Copy(io.Discard, peer) }()
					return client, nil
				}}
				_, _, err := wire.Open(ctx, "amqp://localhost/"+row.query, own, func(inner net.Conn) net.Conn { return inner })
				require.ErrorContains(t, err, row.text)
				assert.Equal(t, 100*time.Millisecond, time.Since(began))
			})
		})
	}
}
