package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// rounds brings the last copy back from tier to tier, late, until the handler is called or the copy is a dead letter. It
// returns the names of the tiers.
func rounds(
	t *testing.T, ctx context.Context, tiered *retrymw.TieredRetry, sent *recorder, h message.HandlerFunc, late ...time.Duration,
) (tiers []string) {
	t.Helper()
	called := false
	for !called {
		last := sent.last()
		name, _, _ := strings.Cut(last.topic, ".")
		if name == "dead" {
			return tiers
		}
		tier, err := backoff.ParseTier(name)
		require.NoError(t, err)
		require.Less(t, len(tiers), 1000, "it circles: %v", tiers[:min(len(tiers), 5)])
		tiers = append(tiers, name)
		time.Sleep(time.Duration(tier) + append(late, 0)[0])
		handles(t, tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			called = true
			return h(msg)
		}), redelivered(ctx, last))
	}
	return tiers
}

// A delay of centuries that a handler requests, or that any publisher can write into the metadata, is cut. The log has it once.
func TestRequestedDelayIsAtMostMaxDelay(t *testing.T) {
	const day = 24 * time.Hour
	for name, row := range map[string]struct {
		change func(*settings)
		want   time.Duration
	}{
		"default":             {func(*settings) {}, 30 * day},
		"a longer schedule":   {func(c *settings) { c.Policy.Schedule = backoff.Schedule{time.Second, 40 * day} }, 40 * day},
		"a longer extra tier": {func(c *settings) { c.Policy.ExtraTiers = []time.Duration{50 * day} }, 50 * day},
		"a longer rule":       {func(c *settings) { c.Policy.Rules = []retry.Rule{never(retry.RetryAfter(60 * day))} }, 60 * day},
		"MaxDelay":            {func(c *settings) { c.Policy.MaxDelay = day }, day},
		"MaxDelay, below an extra tier": {func(c *settings) {
			c.Policy.MaxDelay, c.Policy.ExtraTiers = day, []time.Duration{2 * day}
		}, day},
		"ten years, as backoff.MaxDelay is": {func(c *settings) { c.Policy.MaxDelay = backoff.MaxDelay }, backoff.MaxDelay},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, tiersWait, row.change, func(c *settings) { c.DelayArrivals = true })
			requested := messageOf(routed)
			handles(t, tiered.Middleware(failing(backoff.RetryAfter(errDown, 200*365*day))), requested)
			delayed := messageOf(routed)
			delayed.Metadata[delay.DelayedForKey] = "1752000h"
			handles(t, tiered.Middleware(notCalled(t)), delayed)
			remaining := messageOf(routed)
			retry.Record{Topic: topic, Remaining: backoff.MaxDelay}.Write(remaining.Metadata)
			handles(t, tiered.Middleware(notCalled(t)), remaining)
			require.Len(t, sent.copies, 3)
			for _, c := range sent.copies {
				record, ok := retry.ReadRecord(c.msg.Metadata)
				require.True(t, ok)
				assert.Equal(t, row.want, time.Until(record.DueAt))
			}
			assert.Equal(t, 1, strings.Count(sent.logs.String(), "longer than MaxDelay"))
			assert.Contains(t, sent.logs.String(), "max_delay:"+row.want.String())
			assert.Contains(t, sent.logs.String(), "requested:1752000h0m0s")
		})
	}
}

// never is a rule that matches no error.
func never(then retry.Action) retry.Rule {
	return retry.Rule{Name: "never", If: retry.Is(errNever), Then: then}
}

var errNever = errors.New("never")

// A message that has not failed yet has an age from its first arrival, so that MaxAge ends what a stranger has delayed. The
// requested delay stays in the metadata: it is waited for before the first try only.
func TestMaxAgeEndsAMessageThatOnlyWaits(t *testing.T) {
	for name, row := range map[string]struct {
		delayed time.Duration
		late    time.Duration // in the work queue, after each round
		calls   int
		topic   string // of the last copy
	}{
		"it would be too old":             {2 * time.Hour, 0, 0, "dead.orders"},
		"it is too old after some rounds": {50 * time.Minute, time.Minute, 0, "dead.orders"},
		"it is not too old":               {59 * time.Minute, 0, 1, "1s.orders"},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, tiersWait, func(c *settings) { c.DelayArrivals, c.Policy.MaxAge = true, time.Hour })
			msg, arrived, calls := messageOf(routed), time.Now(), 0
			msg.Metadata[delay.DelayedForKey] = row.delayed.String() // as a program without Watermill writes it
			handles(t, tiered.Middleware(notCalled(t)), msg)
			rounds(t, routed, tiered, sent, counting(&calls, errDown), row.late)
			last := sent.record(t)
			assert.Equal(t, []any{row.calls, row.topic, row.calls, row.calls == 0},
				[]any{calls, sent.last().topic, last.Failures, last.DeadReason == retry.DeadReasonExpired})
			assert.Zero(t, last.Remaining)
			for _, c := range sent.copies {
				record, _ := retry.ReadRecord(c.msg.Metadata)
				assert.True(t, record.FirstArrivedAt.Equal(arrived), "%v", record)
			}
		})
	}
}

func TestJitterAndMaxDelayOutOfBoundsAreRefused(t *testing.T) {
	refused := func(jitter float64, maxDelay time.Duration, rules ...retry.Rule) error {
		policy := configOf(&recorder{}).Policy
		policy.Jitter, policy.MaxDelay, policy.Rules = jitter, maxDelay, rules
		return policy.Validate()
	}
	for maxDelay, want := range map[time.Duration]string{
		-1:                   "MaxDelay is -1ns: it must be 0 (the default), or from 1m0s, the longest delay of Schedule and Rules, to 87600h0m0s",
		59 * time.Second:     "MaxDelay is 59s", // below the schedule
		backoff.MaxDelay + 1: "MaxDelay is 87600h0m0.000000001s",
	} {
		require.ErrorContains(t, refused(0, maxDelay), want)
	}
	require.ErrorContains(t, refused(0, time.Hour, never(retry.Snooze(2*time.Hour))),
		"MaxDelay is 1h0m0s: it must be 0 (the default), or from 2h0m0s")
	never := retry.Policy{Schedule: backoff.Schedule{2 * backoff.MaxDelay}, MaxDelay: time.Hour}.Validate()
	require.ErrorContains(t, never, "Schedule: backoff: retry 1: delay 175200h0m0s is too long")
	require.NotContains(t, never.Error(), "MaxDelay", "no value is right with that schedule")
	for _, wrong := range []float64{-0.1, 1.01, math.NaN(), math.Inf(1), math.Inf(-1)} {
		require.ErrorContains(t, refused(wrong, 0), fmt.Sprintf("Jitter is %v: it must be from 0 (none) to 1", wrong))
	}
	for _, right := range []float64{0, math.SmallestNonzeroFloat64, 0.2, 1} {
		require.NoError(t, refused(right, 0))
	}
}

// Each failure draws its own number.
func TestFailuresAreSpreadOverAllLanes(t *testing.T) {
	tiered, sent := setup(t, tiersWait, observing, func(c *settings) { c.Policy.Jitter = 0.2 })
	h := tiered.Middleware(failing(errDown))
	const failures = 2000 // a lane is left out once in 1e115 runs
	for range failures {
		handles(t, h, messageOf(routed))
	}
	topics, seen := map[string]int{}, map[string]int{}
	for _, c := range sent.copies {
		topics[c.topic]++
	}
	for _, e := range sent.events {
		seen[e.Tier.String()+".orders"]++
		assert.Equal(t, time.Duration(e.Tier), e.Delay)
		assert.Equal(t, 175*time.Millisecond, e.Spread)
	}
	assert.Equal(t, topics, seen)
	assert.Len(t, topics, 8)
	for _, lane := range retrymw.Lanes(time.Second, 0.2) {
		assert.Greater(t, topics[backoff.Tier(lane).String()+".orders"], failures/8/2, "%v", lane)
	}
}

// The lanes of the schedules' delays are tiers. Extra tiers have none: no delay that is spread waits there.
func TestTiersHaveTheLanes(t *testing.T) {
	config := configOf(&recorder{})
	config.Policy.Schedule = backoff.Schedule{time.Second, time.Second}
	config.Policy.Rules = []retry.Rule{{If: retry.Is(errDown), Then: retry.RetryWith(backoff.Schedule{time.Minute})}}
	config.Policy.ExtraTiers = []time.Duration{time.Hour}
	config.Policy.Jitter = 0.4
	want := backoff.Schedule{time.Hour}
	for _, delay := range []time.Duration{time.Second, time.Minute} {
		want = append(want, retrymw.Lanes(delay, 0.4)...)
	}
	assert.Equal(t, want.Tiers(), config.Tiers())
	assert.Len(t, config.Tiers(), 17)
}

func TestArrivalsThatAreNotDelayed(t *testing.T) {
	for name, row := range map[string]struct {
		arrivals bool
		delayed  string
	}{
		"the Pub/Sub delays them": {false, "1h"}, "the time is over": {true, "-1m"}, "garbled": {true, "long"},
	} {
		tiered, sent := setup(t, tiersWait, func(c *settings) { c.DelayArrivals = row.arrivals })
		msg, calls := messageOf(routed), 0
		msg.Metadata[delay.DelayedForKey] = row.delayed
		handles(t, tiered.Middleware(counting(&calls, nil)), msg)
		assert.Equal(t, 1, calls, name)
		assert.Empty(t, sent.copies, name)
	}
}

// Any tier and any jitter: lanes are valid tiers, ascending and distinct, none is shorter than the tier, and none is longer than the
// jitter allows, but for the rounding to whole milliseconds.
func TestLanesAreOnlyEverLonger(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 20_000 {
		magnitude := time.Duration(math.Pow(float64(backoff.MaxDelay/time.Millisecond), random.Float64()))
		delay := min(max(magnitude, 1)*time.Millisecond, backoff.MaxDelay)
		jitter := 1 - random.Float64() // above 0, at most 1
		lanes := retrymw.Lanes(delay, jitter)
		require.NoError(t, backoff.Schedule(lanes).Validate(), "%v, %v, seed %d", delay, jitter, seed)
		require.Equal(t, delay, lanes[0], "%v, %v, seed %d", delay, jitter, seed)
		require.LessOrEqual(t, len(lanes), 8, "%v, %v, seed %d", delay, jitter, seed)
		for i, lane := range lanes[1:] {
			require.Greater(t, lane, lanes[i], "%v, %v, seed %d", delay, jitter, seed)
		}
		width := float64(delay) * jitter
		longest := float64(slices.Max(lanes) - delay)
		require.LessOrEqual(t, longest, width*7/8+float64(time.Millisecond)/2+1e3, "%v, %v, seed %d", delay, jitter, seed)
		if width >= float64(8*time.Millisecond) && float64(delay)*2 <= float64(backoff.MaxDelay) {
			require.Len(t, lanes, 8, "%v, %v, seed %d", delay, jitter, seed)
			require.GreaterOrEqual(t, longest, width*7/8-float64(time.Millisecond)/2-1e3, "%v, %v, seed %d", delay, jitter, seed)
		}
	}
}

func TestLanesOfSomeTiers(t *testing.T) {
	for _, row := range []struct {
		delay  time.Duration
		jitter float64
		want   []time.Duration // in milliseconds; nil: the delay alone
	}{
		{5 * time.Second, 0.2, []time.Duration{5000, 5125, 5250, 5375, 5500, 5625, 5750, 5875}},
		{100 * time.Millisecond, 0.25, []time.Duration{100, 103, 106, 109, 113, 116, 119, 122}},
		{time.Second, 1, []time.Duration{1000, 1125, 1250, 1375, 1500, 1625, 1750, 1875}},
		{5 * time.Millisecond, 0.5, []time.Duration{5, 6, 7}},
		{time.Millisecond, 0.2, nil}, {backoff.MaxDelay, 0.2, nil},
		{time.Second, 0, nil}, {time.Second, -0.1, nil}, {time.Second, 1.1, nil}, {time.Second, math.NaN(), nil}, {time.Second, math.Inf(1), nil},
		{-time.Second, 0.2, nil}, {0, 0.2, nil}, {1, 0.2, nil}, {math.MaxInt64, 0.2, nil},
	} {
		for i := range row.want {
			row.want[i] *= time.Millisecond
		}
		if row.want == nil {
			row.want = []time.Duration{row.delay}
		}
		assert.Equal(t, row.want, retrymw.Lanes(row.delay, row.jitter), "%v, %v", row.delay, row.jitter)
	}
}
