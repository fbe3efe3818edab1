// Package reconnect_test takes running apps their connections. It is never run with the race detector: watermill-amqp's
// subscriber has a data race of its own when it reconnects.
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
	"github.com/tieredretry/watermill-retry/middleware"
)

var errDown = errors.New("the bank is down")

// TestBrokerAwayForAMinute while handlers fail: nothing is lost, nothing is falsely dead-lettered, and no message circles.
func TestBrokerAwayForAMinute(t *testing.T) {
	t.Parallel()
	const messages, handlers = 600, 16
	away := time.Minute
	proxy, uri := broker.Proxy(t)
	a := testapp.New(t, testapp.Schedule(200*time.Millisecond, 500*time.Millisecond, time.Second), func(b *config.BuilderConfig) {
		b.AMQP = amqp.NewDurableQueueConfig(uri)
		b.AMQP.Connection.Reconnect = amqp.DefaultReconnectConfig()
		b.AMQP.Connection.Reconnect.BackoffMaxInterval = 2 * time.Second
	})
	queue := a.Queue("orders")
	processed := testapp.NewLedger()
	var mu sync.Mutex
	deliveries := map[string]map[int]int{} // by message and by how often it had failed
	failing := make(chan struct{}, 1)
	down := make(chan struct{}) // the later messages fail after the broker has gone, the earlier ones wait on tiers meanwhile
	a.Handle(queue, handlers, func(msg *message.Message) error {
		record, _ := middleware.ReadRecord(msg.Metadata)
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
		if record.Failures < n%4 { // never more often than there are retries
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
	lost := time.Now()
	broker.Eventually(t, 30*time.Second, func() bool { return a.Log.Count("holding the message") > 0 }, "failures are held")
	<-time.After(time.Until(lost.Add(away))) // the outage itself
	require.Less(t, processed.Len(), messages)
	require.NoError(t, proxy.Start())
	processed.Wait(t, messages, 2*time.Minute)

	// In doubt twice: copies of messages that were in flight when the broker went may still wait.
	broker.Eventually(t, time.Minute, func() bool {
		info, err := broker.Management(t).ListQueues()
		require.NoError(t, err)
		for _, q := range info {
			if q.Messages > 0 && (q.Name == queue || isTier(q.Name, queue)) {
				return false
			}
		}
		return true
	}, "nothing is left on the way")
	assert.Zero(t, testapp.Depth(t, queue+".dead"), "nothing is falsely dead-lettered")
	a.Mu.Lock()
	assert.Empty(t, a.Deaths)
	a.Mu.Unlock()
	most := 0
	for identity, byFailure := range deliveries {
		for failures, count := range byFailure {
			most = max(most, count-1)
			assert.LessOrEqual(t, count-1, 20, "redeliveries of %s after %d failures", identity, failures)
		}
	}
	t.Logf("published=%d processed=%d duplicates=%d most redeliveries of one message=%d", messages, processed.Len(), len(processed.Twice()), most)
}

func isTier(name, queue string) bool {
	return len(name) > len(queue) && name[:len(queue)] == queue && name != queue+".dead"
}
