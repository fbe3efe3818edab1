package kafkaretry

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// On a network that drops packets, neither a look nor Close nor a subscription that has ended takes as long as one
// request of the app's client, while what asks the cluster takes longer.
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
	go func() { _, _ = c.partitions(t.Context(), "orders") }()
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
	tier, err := c.newSubscriber(relay.SubscriberParams{Tier: backoff.Tier(time.Second)})
	require.NoError(t, err)
	ends, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for _, row := range []struct {
		name string
		do   func()
	}{
		{"the look", func() { assert.ErrorContains(t, c.answers("orders"), "timeout") }},
		{"Subscribe", func() {
			_, err := tier.Subscribe(ends, "retry.1s")
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		}},
		{"Close", c.close},
		{"Subscribe after Close", func() {
			_, err := tier.Subscribe(t.Context(), "retry.1s")
			assert.ErrorIs(t, err, errClosed)
		}},
	} {
		name, do := row.name, row.do
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
