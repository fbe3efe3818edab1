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

// On a network that drops packets, neither a look nor Close takes as long as one request of the app's client, while what
// asks the cluster takes longer.
func TestClusterThatDropsPackets(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, and never answers
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, silent.Close()) })
	accepted := make(chan net.Conn, 100)
	go func() {
		for {
			connection, err := silent.Accept()
			if err != nil {
				return
			}
			accepted <- connection
		}
	}()
	c := newCluster(Config{
		Brokers: []string{silent.Addr().String()}, Group: "billing",
		Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}},
	}, nil)
	go func() { _ = c.ask(func(sarama.ClusterAdmin) error { return nil }) }()
	defer (<-accepted).Close()
	request, patient := make(chan struct{}), c.config.looks()
	patient.Net = c.config.consumer().Net
	go func() {
		defer close(request)
		if client, err := sarama.NewClient(c.config.Brokers, patient); assert.NoError(t, err) {
			_ = client.RefreshMetadata("orders") // no answer comes
		}
	}()
	defer (<-accepted).Close()
	for name, do := range map[string]func(){
		"the look": func() { assert.ErrorContains(t, c.answers("orders"), "timeout") },
		"Close":    c.close,
	} {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			do()
		}()
		select {
		case <-ended:
		case <-request:
		}
		select {
		case <-request:
			require.Fail(t, name+" takes as long as a request")
		default:
		}
	}
}
