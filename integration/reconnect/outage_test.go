// Package reconnect_test closes the connections of running apps. It never runs with the race detector, because watermill-amqp's
// subscriber has a data race when it reconnects.
package reconnect_test

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

var errDown = errors.New("the bank is down")

// TestBrokerUnreachable while handlers fail: no message is lost, dead-lettered by mistake, or redelivered in a loop.
func TestBrokerUnreachable(t *testing.T) {
	t.Parallel()
	const messages, handlers = 600, 16
	proxy, uri := broker.Proxy(t)
	a := testapp.NewParts(t, testapp.Schedule(200*time.Millisecond, 500*time.Millisecond, time.Second), func(b *config.Config) {
		b.AMQP = amqp.NewDurableQueueConfig(uri)
		b.AMQP.Connection.Reconnect = amqp.DefaultReconnectConfig()
		b.AMQP.Connection.Reconnect.BackoffMaxInterval = 2 * time.Second
	})
	queue := a.Queue("orders")
	processed := testapp.NewLedger()
	var mu sync.Mutex
	deliveries := map[string]map[int]int{} // by message and by its number of failures
	failing := make(chan struct{}, 1)
	down := make(chan struct{}) // the later messages fail during the outage; the earlier ones wait on tiers then
	a.Handle(queue, handlers, func(msg *message.Message) error {
		record, _ := retry.ReadRecord(msg.Metadata)
		mu.Lock()
		if deliveries[msg.UUID] == nil {
			deliveries[msg.UUID] = map[int]int{}
		}
		deliveries[msg.UUID][record.Failures]++
		mu.Unlock()
		n, err := strconv.Atoi(msg.UUID)
		if err != nil {
			return backoff.Permanent(err)
		}
		if record.Failures < n%4 { // at most as often as there are retries
			if n >= messages/3 {
				select {
				case failing <- struct{}{}:
				default:
				}
				<-down
			}
			return errDown
		}
		processed.Add(msg.UUID)
		return nil
	})
	a.Run()
	testapp.Send(t, "", queue, testapp.Orders(messages)...)
	<-failing
	proxy.Stop()
	close(down)
	broker.Eventually(t, time.Minute, func() bool {
		return a.Log.Count("holding the message") > 0 && a.Log.Count("Cannot reconnect") > 3
	}, "messages are held, and the broker is not reached again and again")
	require.Less(t, processed.Len(), messages)
	require.NoError(t, proxy.Start())
	processed.Wait(t, messages, 2*time.Minute)

	// Delivery is at least once: duplicates of messages that were in flight when the outage began may still wait.
	broker.Eventually(t, time.Minute, func() bool {
		info, err := broker.Management(t).ListQueues()
		require.NoError(t, err)
		for _, q := range info {
			if q.Messages > 0 && (q.Name == queue || isTier(q.Name, queue)) {
				return false
			}
		}
		return true
	}, "all queues are empty")
	assert.Zero(t, testapp.Depth(t, queue+".dead"), "no message is dead-lettered by mistake")
	assert.Empty(t, a.Events(retry.DeadLettered))
	for identity, byFailure := range deliveries {
		for failures, count := range byFailure {
			assert.LessOrEqual(t, count-1, 20, "redeliveries of %s after %d failures", identity, failures)
		}
	}
}

func isTier(name, queue string) bool {
	return len(name) > len(queue) && name[:len(queue)] == queue && name != queue+".dead"
}
