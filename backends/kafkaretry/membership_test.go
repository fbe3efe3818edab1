package kafkaretry

import (
	"net"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// On a network that drops packets, a look ends within seconds, and neither delays another one nor Close what asks the
// cluster, which takes minutes.
func TestClusterThatDropsPackets(t *testing.T) {
	t.Parallel()
	const patience = 20 * time.Second
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, and never answers
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, silent.Close()) })
	asked := make(chan net.Conn, 100)
	go func() {
		for {
			connection, err := silent.Accept()
			if err != nil {
				return
			}
			asked <- connection
		}
	}()
	c := newCluster(Config{
		Brokers: []string{silent.Addr().String()}, Group: "billing",
		Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}},
	}, nil)
	go func() { _ = c.ask(func(sarama.ClusterAdmin) error { return nil }) }()
	defer (<-asked).Close()
	looked := make(chan error, 1)
	go func() { looked <- c.answers("orders") }()
	select {
	case err := <-looked:
		require.ErrorContains(t, err, "timeout")
	case <-time.After(patience):
		require.Fail(t, "the look waits")
	}
	closed := make(chan struct{})
	go func() {
		c.close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		require.Fail(t, "Close waits")
	}
}
