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
	require.NoError(t, broker.Receive(t, closed, "the close, whose answer is held back too"))
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
	const callers = 64
	topology := declare(t, nil)
	p := topology.open(t, nil)
	var confirmed [callers]int
	var total atomic.Int64
	busy := make(chan struct{})
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			for {
				err := p.Publish(topology.queue, newMessage(fmt.Sprint(caller, "-", confirmed[caller])))
				if err != nil {
					asPublishError(t, err, retry.ErrClosed)
					return
				}
				confirmed[caller]++
				if total.Add(1) == 1000 {
					close(busy)
				}
			}
		})
	}
	broker.Receive(t, busy, "1000 messages are confirmed")
	require.NoError(t, p.Close())
	group.Wait()
	require.NoError(t, p.Close(), "again")
	want := map[string]int{}
	for caller, count := range confirmed {
		for n := range count {
			want[fmt.Sprint(caller, "-", n)] = 1
		}
	}
	assert.Equal(t, want, topology.content(t))
}
