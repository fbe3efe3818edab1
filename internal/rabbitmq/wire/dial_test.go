package wire_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

const soon = 20 * time.Second // below amqp091-go's own 30 s

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
	for name, config := range map[string]amqp091.Config{
		"the default dialer": {},
		"a dialer of the app's own": {Dial: func(network, address string) (net.Conn, error) {
			return net.Dial(network, address)
		}},
	} {
		t.Run(name+", by the address's timeout", func(t *testing.T) {
			address, closed := silent(t)
			start := time.Now()
			_, _, err := wire.Open(context.Background(), address+"?connection_timeout=100", config, nil)
			require.Error(t, err)
			assert.Less(t, time.Since(start), soon)
			<-closed
		})
		t.Run(name+", by the context", func(t *testing.T) {
			address, closed := silent(t)
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			start := time.Now()
			_, _, err := wire.Open(ctx, address, config, func(inner net.Conn) net.Conn { return inner })
			require.Error(t, err)
			assert.Less(t, time.Since(start), soon)
			<-closed
		})
	}
}
