package retrytest_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// Messages and retries of a paused handler wait until it is resumed.
func TestAPausedHandlerGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := retrytest.New(t, backoff.Schedule{time.Second, 30 * time.Second})
		begin := time.Now()
		var mu sync.Mutex
		var calls []time.Duration
		app.AddConsumerHandler(app.Router, "billing", "orders", func(msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, time.Since(begin).Round(time.Second))
			if len(calls) == 1 {
				require.NoError(t, app.Pause("billing"))
				for _, uuid := range []string{"2", "3", "4"} {
					require.NoError(t, app.Publisher().Publish("orders", message.NewMessage(uuid, nil)))
				}
				time.AfterFunc(10*time.Minute, func() {
					assert.Equal(t, []string{"paused"}, app.Health().Subscriptions[0].Paused)
					assert.NoError(t, app.Resume("billing"))
				})
				return errors.New("down")
			}
			return nil
		})
		app.Send("orders", message.NewMessage("1", nil))
		stories := app.Stories("orders")
		require.Len(t, stories, 4)
		for _, story := range stories {
			story.Processed()
		}
		assert.Equal(t, []time.Duration{0, 10 * time.Minute, 10 * time.Minute, 10 * time.Minute, 10 * time.Minute}, calls)
		require.NoError(t, app.Health().Ready())
		assert.Nil(t, app.Health().Subscriptions[0].Paused)
	})
}

// Some messages can wait for hours, behind others that are tried. Send has patience while something happens.
func TestSendWaitsForTheEndOfManyPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := retrytest.New(t, backoff.Schedule{time.Hour})
		begin, first := time.Now(), true
		app.AddConsumerHandler(app.Router, "billing", "orders", func(*message.Message) error {
			if first {
				first = false
				for _, uuid := range []string{"2", "3", "4", "5", "6", "7", "8"} {
					assert.NoError(t, app.Publisher().Publish("orders", message.NewMessage(uuid, nil)))
				}
			}
			if time.Since(begin) < 3*time.Hour {
				return errBusy
			}
			return nil
		}, retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{time.Hour}, Rules: []retry.Rule{{If: retry.Is(errBusy), Then: retry.Pause(50 * time.Minute)}}}})
		app.Send("orders", message.NewMessage("1", nil)).Processed()
		stories := app.Stories("orders")
		require.Len(t, stories, 8)
		for _, story := range stories {
			story.Processed()
		}
		assert.GreaterOrEqual(t, time.Since(begin), 3*time.Hour)
	})
}

// The handlers of a group share the messages: those of a paused one go to the others.
func TestTheGroupOfAPausedHandlerGoesOn(t *testing.T) {
	inApp(t, func(t *testing.T, app *retrytest.App) {
		var by []string
		for _, name := range []string{"first", "second"} {
			app.AddConsumerHandler(app.Router, name, "orders", func(*message.Message) error {
				by = append(by, name)
				return nil
			})
		}
		require.NoError(t, app.Pause("first"))
		for range 20 {
			app.Send("orders", message.NewMessage("1", nil)).Processed()
		}
		assert.Equal(t, slices.Repeat([]string{"second"}, 20), by)
	})
}

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

var errBusy, errGone = errors.New("too many requests"), errors.New("the order was cancelled")

// inTurn makes a handler that returns these errors, one at each call, and then nil.
func inTurn(errs ...error) message.NoPublishHandlerFunc {
	return func(*message.Message) (err error) {
		if len(errs) > 0 {
			err, errs = errs[0], errs[1:]
		}
		return err
	}
}

func outcomesOf(story *retrytest.Story) (all []retry.Outcome) {
	for _, attempt := range story.Attempts() {
		all = append(all, attempt.Outcome)
	}
	return all
}

func TestDelayedMessageIsParkedBeforeItsFirstTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := retrytest.New(t, backoff.Schedule{time.Second, time.Minute})
		app.AddConsumerHandler(app.Router, "billing", "orders", failing())
		later := order("1")
		delay.Message(later, delay.For(40*time.Second))
		story := app.Send("orders", later).RetriedAt(40 * time.Second).NeverRetried().Processed()
		assert.Equal(t, []retry.Outcome{retry.Parked, retry.Processed}, outcomesOf(story))
	})
}
