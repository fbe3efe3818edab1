package connect_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/retry"
)

// Messages that fail in the same moment wait on all lanes of their tier, and each comes back once, after its lane's
// delay. How evenly they come back is measured by the question jitter of integration/bench.
func TestJitterSpreadsMessagesThatFailedTogether(t *testing.T) {
	t.Parallel()
	const n, delay, jitter = 2000, 5 * time.Second, 0.2
	s := testapp.New(t, func(b *config.Config) { b.Policy.Schedule, b.Policy.Jitter = backoff.Schedule{delay}, jitter })
	lanes := backoff.Lanes(delay, jitter)
	require.Len(t, lanes, backoff.MaxLanes)

	var mu sync.Mutex
	failedAt, laneOf, waited := map[string]time.Time{}, map[string]time.Duration{}, map[string]time.Duration{}
	perLane := map[time.Duration]int{}
	calls := testapp.NewLedger() // first tries and retries
	together := make(chan struct{})
	s.Observe(eventtest.OnEvent(func(e retry.Event) {
		if e.Outcome != retry.Retried {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		lane := time.Duration(e.Tier)
		laneOf[e.MessageUUID] = lane
		perLane[lane]++
		assert.Equal(t, lane, e.Delay)
	}))
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
		if testapp.Failures(msg) == 0 {
			if calls.Add(msg.UUID); calls.Len() == n {
				mu.Lock()
				select {
				case <-together:
				default:
					close(together)
				}
				mu.Unlock()
			}
			<-together // so that all fail in the same moment
			mu.Lock()
			defer mu.Unlock()
			failedAt[msg.UUID] = time.Now()
			return errDown
		}
		calls.Add("retry " + msg.UUID)
		mu.Lock()
		defer mu.Unlock()
		waited[msg.UUID] = time.Since(failedAt[msg.UUID])
		return nil
	}, retry.Options{Concurrency: n})
	s.Run()
	for _, lane := range lanes {
		assert.True(t, testapp.Exists(t, s.Queue("orders")+"."+s.Name+"."+backoff.Tier(lane).String()), "%v", lane)
	}
	s.Publish(s.Queue("orders"), testapp.IDs(n)...)
	calls.Wait(t, 2*n, 3*time.Minute)

	// Nothing waits any more, so all duplicates have arrived.
	for _, lane := range lanes {
		queue := s.Queue("orders") + "." + s.Name + "." + backoff.Tier(lane).String()
		testapp.Eventually(t, func() bool { return testapp.Depth(t, queue) == 0 }, "%s is empty", queue)
	}
	testapp.Eventually(t, func() bool { return testapp.Depth(t, s.Queue("orders")) == 0 }, "the work queue is empty")
	assert.Empty(t, calls.Twice(), "none twice")
	mu.Lock()
	defer mu.Unlock()
	for id, wait := range waited {
		assert.GreaterOrEqual(t, wait, broker.Least(laneOf[id]), "message %s on lane %v is not early", id, laneOf[id])
	}
	for _, lane := range lanes {
		assert.Positive(t, perLane[lane], "%v is used", lane) // one of 2,000 messages misses a lane once in 1e116 runs
	}
	assert.Len(t, perLane, len(lanes))
	assert.Len(t, laneOf, n)
	assert.Len(t, waited, n, "none lost")
}
