package retrytest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// errorsInTurn returns these errors, one for each call, and then the last one again.
func errorsInTurn(errs ...error) func(call int) error {
	return func(call int) error { return errs[min(call, len(errs))-1] }
}

// A simulated story is that of an app with the same policy: of each attempt when it was, how long the handler took, what came of it.
func TestSimulatedStoryIsThatOfAnApp(t *testing.T) {
	rules := []retry.Rule{
		{Name: "busy", If: retry.Is(errBusy), Then: retry.Snooze(17 * time.Second)},
		{Name: "gone", If: retry.Is(errGone), Then: retry.Discard()},
		{Name: "back", If: retry.Is(errBack), Then: retry.GiveBack()},
		{Name: "slow", If: retry.Is(errSlow), Then: retry.RetryWith(backoff.Constant(2*time.Minute, 3))},
		{Name: "later", If: retry.Is(errLater), Then: retry.RetryAfter(45 * time.Second)},
		{Name: "mine", If: retry.Is(errMine), Then: retry.DeadLetter("mine")},
	}
	plain := func(calls ...error) retrytest.SimulationConfig {
		return retrytest.SimulationConfig{Policy: retry.Policy{Schedule: backoff.Schedule{time.Second, 30 * time.Second}, Rules: rules}, Fails: errorsInTurn(calls...)}
	}
	with := func(c retrytest.SimulationConfig, change func(*retrytest.SimulationConfig)) retrytest.SimulationConfig {
		change(&c)
		return c
	}
	tests := map[string]retrytest.SimulationConfig{
		"success":       plain(nil),
		"exhausted":     plain(errDown),
		"recovered":     plain(errDown, nil),
		"permanent":     plain(errDown, backoff.Permanent(errDown)),
		"snoozed":       plain(errBusy, errBusy, errDown, nil),
		"discarded":     plain(errDown, errGone),
		"given back":    plain(errBack, errDown, errBack, nil),
		"own schedule":  plain(errSlow),
		"retry after":   plain(errLater),
		"own reason":    plain(errDown, errMine),
		"slow handler":  with(plain(errDown, nil), func(c *retrytest.SimulationConfig) { c.Takes = 2500 * time.Millisecond }),
		"expired":       with(plain(errBusy), func(c *retrytest.SimulationConfig) { c.Policy.MaxAge, c.Takes = time.Minute, time.Second }),
		"extra tiers":   with(plain(backoff.RetryAfter(errDown, time.Hour)), func(c *retrytest.SimulationConfig) { c.Policy.ExtraTiers = backoff.Schedule{10 * time.Minute} }),
		"long delay":    plain(backoff.RetryAfter(errDown, 2*time.Hour)),
		"between tiers": plain(backoff.RetryAfter(errDown, 2500*time.Millisecond)),
		"tiny tiers": with(plain(backoff.RetryAfter(errDown, 1100*time.Millisecond)), func(c *retrytest.SimulationConfig) {
			c.Policy.Schedule, c.Policy.Rules = backoff.Schedule{100 * time.Millisecond}, nil
		}),
	}
	for name, config := range tests {
		for _, tiersWait := range []bool{false, true} {
			config.TiersWait = tiersWait
			t.Run(fmt.Sprintf("%s, tiers wait %v", name, tiersWait), func(t *testing.T) {
				simulated := retrytest.Simulate(config)
				require.NoError(t, simulated.Err)
				synctest.Test(t, func(t *testing.T) { compareStories(t, storyOf(t, config).Attempts(), simulated.Attempts) })
			})
		}
	}
}

var (
	errBack  = errors.New("not here")
	errSlow  = errors.New("slow")
	errLater = errors.New("later")
	errMine  = errors.New("mine")
)

// storyOf runs a simulated configuration in an app.
func storyOf(t *testing.T, config retrytest.SimulationConfig) *retrytest.Story {
	t.Helper()
	app := retrytest.NewWithConfig(t, retrytest.Config{Policy: config.Policy, TiersWait: config.TiersWait, Patience: backoff.MaxDelay})
	call := 0
	app.AddConsumerHandler(app.Router, "billing", "orders", func(*message.Message) error {
		time.Sleep(config.Takes)
		call++
		return config.Fails(call)
	})
	return app.Send("orders", order("1"))
}

// compareStories compares what both have. The relay is late by up to 2 ms in each round.
func compareStories(t *testing.T, real, simulated []retrytest.Attempt) {
	t.Helper()
	require.Len(t, simulated, len(real))
	for i, want := range real {
		got := simulated[i]
		late := time.Duration(i+1) * 2 * time.Millisecond
		assert.GreaterOrEqual(t, want.At, got.At, "attempt %d", i)
		assert.LessOrEqual(t, want.At, got.At+late, "attempt %d", i)
		assert.GreaterOrEqual(t, want.Waited, got.Waited, "attempt %d", i)
		assert.LessOrEqual(t, want.Waited, got.Waited+time.Duration(len(real))*2*time.Millisecond, "attempt %d", i)
		assert.Equal(t, want.Duration, got.Duration, "attempt %d", i)
		assert.InDelta(t, want.Delay, got.Delay, float64(late), "attempt %d", i)
		assert.Equal(t, []any{want.Outcome, want.Err, want.Tier, want.Rule}, []any{got.Outcome, got.Err, got.Tier, got.Rule}, "attempt %d", i)
		assert.Equal(t, []any{want.Record.Failures, want.Record.Snoozes, want.Record.Remaining, want.Record.Reason, want.Record.DeadReason},
			[]any{got.Record.Failures, got.Record.Snoozes, got.Record.Remaining, got.Record.Reason, got.Record.DeadReason}, "attempt %d", i)
	}
}

// Age counts from before the first delivery.
func TestSimulatedAge(t *testing.T) {
	t.Parallel()
	config := retrytest.SimulationConfig{Policy: retry.Policy{Schedule: backoff.Constant(time.Minute, 5), MaxAge: 10 * time.Minute}, Age: 8 * time.Minute}
	story := retrytest.Simulate(config)
	require.Len(t, story.Attempts, 3)
	assert.Equal(t, retry.DeadReasonExpired, story.Attempts[2].Record.DeadReason)
	assert.Equal(t, 2*time.Minute, story.Attempts[2].At)

	config.Age = 11 * time.Minute
	story = retrytest.Simulate(config)
	require.Len(t, story.Attempts, 1, "the handler is not called")
	assert.Equal(t, retry.DeadReasonExpired, story.Attempts[0].Record.DeadReason)
	assert.NoError(t, story.Attempts[0].Err)
}

// A rule that looks at the age of the failure sees the time of the simulation.
func TestSimulatedRulesSeeTheTimePass(t *testing.T) {
	t.Parallel()
	story := retrytest.Simulate(retrytest.SimulationConfig{Policy: retry.Policy{Schedule: backoff.Constant(time.Hour, 50), Rules: []retry.Rule{{
		Name: "a day", Then: retry.DeadLetter("a day"),
		If: func(r retry.Record, _ error) bool {
			return r.Failures > 0 && time.Since(r.FirstFailedAt) >= 24*time.Hour
		},
	}}}})
	require.Len(t, story.Attempts, 25)
	assert.Equal(t, retry.DeadReason("a day"), story.Attempts[24].Record.DeadReason)
}

// A message without an end has a story with one.
func TestSimulatedStoryEnds(t *testing.T) {
	t.Parallel()
	story := retrytest.Simulate(retrytest.SimulationConfig{Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}, Rules: []retry.Rule{
		{If: retry.Is(errBusy), Then: retry.Snooze(time.Second)},
	}}, Fails: errorsInTurn(errBusy)})
	assert.Len(t, story.Attempts, 10_000)
	assert.Contains(t, story.String(), "9936 more")
	assert.True(t, strings.HasSuffix(strings.Join(strings.Fields(story.String()), " "), "... and so on"), story.String())
}

func TestSimulateReportsEveryFault(t *testing.T) {
	t.Parallel()
	story := retrytest.Simulate(retrytest.SimulationConfig{
		Policy: retry.Policy{Schedule: backoff.Schedule{0}, Rules: []retry.Rule{{}}, MaxAge: -1, Jitter: 2, ExtraTiers: []time.Duration{100}}, Takes: -1, Age: -1,
	})
	assert.Empty(t, story.Attempts)
	for _, fault := range []string{"Schedule: ", "Rules[0]", "MaxAge is -1ns", "Takes is -1ns", "Age is -1ns", "Jitter is 2", "ExtraTiers: "} {
		assert.ErrorContains(t, story.Err, fault)
	}
	assert.True(t, strings.HasPrefix(story.String(), "not a valid configuration: "))
}
