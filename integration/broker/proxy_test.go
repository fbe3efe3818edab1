package broker_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

// network returns a network before a server that does this with each connection, and its address.
func network(t *testing.T, serve func(net.Conn)) (*broker.Network, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			served.Go(func() { serve(connection); _ = connection.Close() })
		}
	})
	between, address, err := broker.NewProxy("amqp://" + listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() {
		between.Stop()
		require.NoError(t, listener.Close())
		served.Wait()
		goleak.VerifyNone(t, goleak.IgnoreCurrent())
	})
	uri, err := url.Parse(address)
	require.NoError(t, err)
	return between, uri.Host
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	connection, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func TestANetworkDelaysData(t *testing.T) {
	between, address := network(t, echo)
	connection := dial(t, address)
	for _, line := range []broker.Line{{Latency: 50 * time.Millisecond}, {Rate: 20}} { // two bytes in 100 ms
		between.Disturb(line, line)
		begin := time.Now()
		_, err := connection.Write([]byte("three"))
		require.NoError(t, err)
		_, err = io.ReadFull(connection, make([]byte, 5))
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond, "%+v", line)
	}
}

// TestConnectionsThatLostDataBreak when the data comes through again, and not before.
func TestConnectionsThatLostDataBreak(t *testing.T) {
	received := make(chan byte, 2)
	between, address := network(t, func(c net.Conn) {
		data := make([]byte, 1)
		for _, err := c.Read(data); err == nil; _, err = c.Read(data) {
			received <- data[0]
			_, _ = c.Write(data)
		}
	})
	connection := dial(t, address)
	between.Disturb(broker.Line{}, broker.Line{Lost: true})
	_, err := connection.Write([]byte{7})
	require.NoError(t, err)
	assert.Equal(t, byte(7), <-received, "this side passes on")
	between.Disturb(broker.Line{}, broker.Line{})
	_, err = connection.Read(make([]byte, 1))
	require.Error(t, err)
	connection = dial(t, address)
	_, err = connection.Write([]byte{8})
	require.NoError(t, err)
	_, err = io.ReadFull(connection, make([]byte, 1))
	require.NoError(t, err)
}
