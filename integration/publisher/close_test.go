package publisher_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestCloseWaitsForMessagesInFlight(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	proxy, uri := broker.Proxy(t)
	p := topology.open(t, func(c *settings) { c.Wire.URI, c.ConfirmTimeout = uri, 700*time.Millisecond })
	hold(t, proxy, "downstream")
	result := make(chan error, 1)
	go func() { result <- p.Publish(topology.queue, newMessage("in flight")) }()
	client := broker.Channel(t)
	broker.Eventually(t, soon, func() bool {
		queue, err := client.QueueDeclarePassive(topology.queue, true, false, false, false, nil)
		return err == nil && queue.Messages == 1
	}, "the message is in the queue")
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	select {
	case err := <-result:
		require.ErrorIs(t, err, publish.ErrNotConfirmed)
	case <-closed:
		t.Fatal("Close did not wait")
	}
	select {
	case err := <-closed: // the broker's answer to the close is held back too
		require.NoError(t, err)
	case <-time.After(soon):
		t.Fatal("Close hangs")
	}
}

func TestCloseWhileDisconnected(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	proxy, uri := broker.Proxy(t)
	p := topology.open(t, func(c *settings) { c.Wire.URI, c.Wire.ReconnectInitial = uri, time.Minute })
	proxy.Stop()
	broker.Eventually(t, soon, func() bool {
		return errors.Is(p.Publish(topology.queue, newMessage("away")), publish.ErrNotConnected)
	}, "the publisher finds that the connection is lost")
	begin := time.Now()
	require.NoError(t, p.Close())
	assert.Less(t, time.Since(begin), time.Second)
}

func TestCloseUnderLoad(t *testing.T) {
	t.Parallel()
	const publishers, callers = 4, 16
	connection := connect(t, publisher.Config{})
	var topologies [publishers]topology
	var confirmed [publishers][callers]map[string]int
	var total atomic.Int64
	busy := make(chan struct{})
	var group sync.WaitGroup
	for i := range publishers {
		topologies[i] = declare(t, nil)
		p := on(connection, halfConfig{Exchange: topologies[i].exchange})
		for caller := range callers {
			confirmed[i][caller] = map[string]int{}
			group.Go(func() {
				for n := 0; ; n++ {
					uuid := fmt.Sprint(caller, "-", n)
					if err := p.Publish(topologies[i].queue, newMessage(uuid)); err != nil {
						asPublishError(t, err, retry.ErrClosed)
						return
					}
					confirmed[i][caller][uuid]++
					if total.Add(1) == 1000 {
						close(busy)
					}
				}
			})
		}
	}
	broker.Receive(t, busy, "1000 messages are confirmed")
	require.NoError(t, connection.Close())
	group.Wait()
	require.NoError(t, connection.Close(), "again")
	for i, topology := range topologies {
		want := map[string]int{}
		for _, uuids := range confirmed[i] {
			for uuid := range uuids {
				want[uuid] = 1
			}
		}
		assert.Equal(t, want, topology.content(t))
	}
}
