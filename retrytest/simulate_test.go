package retrytest_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

func TestSimulateComputesEveryRetry(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		schedule backoff.Schedule
		retries  []retrytest.SimulatedRetry
		dead     time.Duration
	}{
		{"one retry", backoff.Schedule{time.Second}, []retrytest.SimulatedRetry{{1, backoff.Tier(time.Second), time.Second, time.Second}}, time.Second},
		{"one tier for two retries", backoff.Constant(time.Minute, 2), []retrytest.SimulatedRetry{
			{1, backoff.Tier(time.Minute), time.Minute, time.Minute}, {2, backoff.Tier(time.Minute), time.Minute, 2 * time.Minute},
		}, 2 * time.Minute},
		{"longer than a time.Duration", backoff.Constant(backoff.MaxDelay, 30)[28:], []retrytest.SimulatedRetry{
			{1, backoff.Tier(backoff.MaxDelay), backoff.MaxDelay, backoff.MaxDelay},
			{2, backoff.Tier(backoff.MaxDelay), backoff.MaxDelay, 2 * backoff.MaxDelay},
		}, 2 * backoff.MaxDelay},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := retrytest.Simulate(test.schedule)
			assert.NoError(t, s.Err)
			assert.Equal(t, test.retries, s.Retries)
			assert.Equal(t, test.dead, s.DeadLetterAt)
		})
	}
	long := retrytest.Simulate(backoff.Constant(backoff.MaxDelay, 1000))
	assert.Equal(t, time.Duration(math.MaxInt64), long.DeadLetterAt)
	assert.Equal(t, time.Duration(math.MaxInt64), long.Retries[999].At)
}

func TestSimulateHasTheErrorOfAnInvalidSchedule(t *testing.T) {
	t.Parallel()
	for _, schedule := range []backoff.Schedule{nil, {100}, {-time.Second, time.Second}, backoff.Exponential(time.Second, -1, 2)} {
		s := retrytest.Simulate(schedule)
		assert.EqualError(t, s.Err, schedule.Validate().Error())
		assert.Contains(t, s.String(), "not a valid schedule: backoff: ")
	}
}

// 1.402 seconds have no exact float64.
func TestTimesAreWrittenWithoutRoundingErrors(t *testing.T) {
	t.Parallel()
	assert.Equal(t, `failure   at       tier          waits
1         0s       701ms         701ms
2         701ms    701ms         701ms
3         1.402s   701ms         701ms
4         2.103s   dead letter
`, retrytest.Simulate(backoff.Constant(701*time.Millisecond, 3)).String())
}

// Simulate computes the retries. The app runs them through the router, the middleware and the relay.
func TestSimulateMatchesTheRetriesOfAnApp(t *testing.T) {
	for _, schedule := range []backoff.Schedule{
		{time.Millisecond}, backoff.Exponential(time.Second, 5, 6), {time.Hour, time.Second, time.Hour, 24 * time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			app := retrytest.New(t, schedule)
			app.AddConsumerHandler(app.Router, "billing", "orders", always(errDown))
			story := app.Send("orders", order("1"))
			var at []time.Duration
			for i, tiered := range retrytest.Simulate(schedule).Retries {
				at = append(at, tiered.At)
				assert.Equal(t, tiered.Tier, story.Attempts()[i].Tier)
				assert.Equal(t, tiered.Wait, story.Attempts()[i].Delay)
				assert.Equal(t, tiered.Failure, story.Attempts()[i].Failures)
			}
			story.RetriedAt(at...).DeadLettered(retry.DeadReasonExhausted)
		})
	}
}
