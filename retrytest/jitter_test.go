package retrytest_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"

	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// The assertions take the shortest delays. The stories have those that were chosen.
func TestJitterInAnApp(t *testing.T) {
	schedule := backoff.Schedule{time.Second, 10 * time.Second}
	for _, tiersWait := range []bool{true, false} {
		bubble(t, fmt.Sprintf("tiers wait %v", tiersWait), func(t *testing.T) {
			app := retrytest.NewWithConfig(t, retrytest.Config{Policy: retry.Policy{Schedule: schedule, Jitter: 0.5}, TiersWait: tiersWait})
			app.AddConsumerHandler(app.Router, "billing", "orders", always(errDown))
			for n := range 50 {
				story := app.Send("orders", order(fmt.Sprint(n)))
				story.RetriedAt(time.Second, 11*time.Second).Waited(schedule...).DeadLettered(retry.DeadReasonExhausted)
				for i, a := range story.Attempts()[:2] {
					require.GreaterOrEqual(t, a.Delay, schedule[i])
					require.LessOrEqual(t, a.Delay, schedule[i]*3/2)
					require.GreaterOrEqual(t, a.Waited, a.Delay, "the story has the delay that was chosen")
					require.LessOrEqual(t, a.Waited, a.Delay+2*time.Millisecond)
					require.Contains(t, story.String(), fmt.Sprintf("retried, waits %v on tier %v", backoff.Tier(a.Delay.Round(time.Millisecond)), a.Tier))
				}
			}
		})
	}
}

// A simulated story shows the range of each time and each delay.
func TestSimulatedStoryWithJitter(t *testing.T) {
	t.Parallel()
	config := retrytest.SimulationConfig{Policy: retry.Policy{Schedule: backoff.Schedule{5 * time.Second, time.Minute}, Jitter: 0.2}}
	assert.Equal(t, `at           took   failure   outcome                               why
0s           0s     1         retried, waits 5s to 6s on tier 5s    the handler fails
5s to 6s     0s     2         retried, waits 1m to 72s on tier 1m   the handler fails
65s to 78s   0s     3         dead-lettered as exhausted            the handler fails
`, retrytest.Simulate(config).String())

	config.TiersWait = true
	config.Fails = errorsInTurn(errDown, backoff.RetryAfter(errDown, time.Minute), nil)
	assert.Equal(t, `at               took   failure   outcome                                  why
0s               0s     1         retried, waits 5s to 5875ms on tier 5s   the bank is down
5s to 5.875s     0s     2         retried, waits 1m on tier 1m             the bank is down
65s to 65.875s   0s     -         recovered
`, retrytest.Simulate(config).String())

	long := retrytest.Simulate(retrytest.SimulationConfig{Policy: retry.Policy{Schedule: backoff.Constant(backoff.MaxDelay/2, 100), Jitter: 1}})
	assert.Equal(t, time.Duration(math.MaxInt64), long.Attempts[100].At)
	assert.NotContains(t, long.String(), " -", "no time is negative")
}
