package middleware_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// rounds brings the last copy back from tier to tier, until the handler is called or the copy is a dead letter. It returns the names of
// the tiers.
func rounds(t *testing.T, ctx context.Context, tiered *retrymw.TieredRetry, sent *recorder, h message.HandlerFunc) (tiers []string) {
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
		time.Sleep(time.Duration(tier))
		handles(t, tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			called = true
			return h(msg)
		}), redelivered(ctx, last))
	}
	return tiers
}

func TestRequestedDelayIsWaitedForOnTheTiers(t *testing.T) {
	for _, row := range []struct {
		name      string
		requested time.Duration
		tiers     []string // the tiers that the message waits on, one after the other
	}{
		{"shorter than the shortest tier", 10 * time.Millisecond, []string{"1s"}},
		{"now", 0, []string{"1s"}},
		{"a tier", 5 * time.Second, []string{"5s"}},
		{"between two tiers", 3 * time.Second, []string{"1s", "1s", "1s"}},
		{"a part of the shortest tier", 1500 * time.Millisecond, []string{"1s", "1s"}},
		{"a little longer than the longest tier", time.Minute + 400*time.Millisecond, []string{"1m", "1s"}},
		{"longer than the longest tier", 2*time.Minute + 7*time.Second, []string{"1m", "1m", "5s", "1s", "1s"}},
	} {
		bubble(t, row.name, func(t *testing.T) {
			tiered, sent := setup(t, tiersWait, observing)
			failedAt := time.Now()
			handles(t, tiered.Middleware(failing(backoff.RetryAfter(errDown, row.requested))), messageOf(routed))
			promised := sent.only(t).msg.Metadata[recordkey.DueAt]

			assert.Equal(t, row.tiers, rounds(t, routed, tiered, sent, succeed))
			waited := time.Since(failedAt)
			assert.GreaterOrEqual(t, waited, row.requested, "never early")
			assert.LessOrEqual(t, waited, max(row.requested, time.Second)+time.Second, "late by at most the shortest tier")
			assert.Equal(t, promised, time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), "the due time is true")
			for _, c := range sent.copies {
				assert.Equal(t, "1", c.msg.Metadata[recordkey.Failures], "a round on a tier is not a failure")
				assert.Equal(t, promised, c.msg.Metadata[recordkey.DueAt])
			}
			require.Len(t, sent.events, len(row.tiers)+1)
			assert.Equal(t, waited, sent.events[0].Delay)
			for _, e := range sent.events[1:len(row.tiers)] {
				assert.Equal(t, retry.Parked, e.Outcome)
			}
			assert.Equal(t, retry.Recovered, sent.events[len(row.tiers)].Outcome)
		})
	}
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

func TestMaxDelayMustNotCutTheSchedule(t *testing.T) {
	for name, row := range map[string]struct {
		set  time.Duration
		rule retry.Rule
		want string
	}{
		"negative":       {-1, never(retry.Discard()), "MaxDelay is -1ns: it must be 0 (the default), or from 1m0s, the longest delay of Schedule and Rules, to 87600h0m0s"},
		"below schedule": {59 * time.Second, never(retry.Discard()), "MaxDelay is 59s"},
		"below a rule":   {time.Hour, never(retry.Snooze(2 * time.Hour)), "MaxDelay is 1h0m0s: it must be 0 (the default), or from 2h0m0s"},
		"beyond TTLs":    {backoff.MaxDelay + 1, never(retry.Discard()), "MaxDelay is 87600h0m0.000000001s"},
	} {
		config := configOf(&recorder{})
		config.Policy.MaxDelay, config.Policy.Rules = row.set, []retry.Rule{row.rule}
		require.ErrorContains(t, config.Policy.Validate(), row.want, name)
	}
}

// A message that has not failed yet has an age from its first arrival, so that MaxAge ends what a stranger has delayed.
func TestMaxAgeEndsAMessageThatOnlyWaits(t *testing.T) {
	for name, row := range map[string]struct {
		delayed   time.Duration
		late      time.Duration // in the work queue, after each round
		wantCalls int
	}{
		"it would be too old":             {2 * time.Hour, 0, 0},
		"it is too old after some rounds": {50 * time.Minute, time.Minute, 0},
		"it is not too old":               {time.Hour, 0, 1},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, tiersWait, func(c *settings) { c.DelayArrivals, c.Policy.MaxAge = true, time.Hour })
			msg, arrived, calls := messageOf(routed), time.Now(), 0
			msg.Metadata[delay.DelayedForKey] = row.delayed.String()
			h := func(*message.Message) ([]*message.Message, error) {
				calls++
				return nil, nil
			}
			for range 1000 {
				published := len(sent.copies)
				handles(t, tiered.Middleware(h), msg)
				if len(sent.copies) == published {
					break
				}
				last := sent.copies[published]
				record, _ := retry.ReadRecord(last.msg.Metadata)
				assert.True(t, record.FirstArrivedAt.Equal(arrived), "%v", record)
				if record.DeadReason != "" {
					assert.Equal(t, retry.DeadReasonExpired, record.DeadReason)
					assert.Zero(t, record.Failures)
					break
				}
				name, _, _ := strings.Cut(last.topic, ".")
				tier, err := backoff.ParseTier(name)
				require.NoError(t, err)
				time.Sleep(time.Duration(tier) + row.late)
				msg = redelivered(routed, last)
			}
			assert.Equal(t, row.wantCalls, calls)
		})
	}
}

func TestDelayOfAFreshMessage(t *testing.T) {
	arrivals := func(c *settings) { c.DelayArrivals = true }
	for name, row := range map[string]struct {
		set   func(*message.Message)
		tiers []string
		waits time.Duration
	}{
		"For":                                 {func(m *message.Message) { delay.Message(m, delay.For(7*time.Second)) }, []string{"5s", "1s", "1s"}, 7 * time.Second},
		"Until":                               {func(m *message.Message) { delay.Message(m, delay.Until(time.Now().Add(time.Minute))) }, []string{"1m"}, time.Minute},
		"For, of a program without Watermill": {func(m *message.Message) { m.Metadata[delay.DelayedForKey] = "7s" }, []string{"5s", "1s", "1s"}, 7 * time.Second},
		"of properties": {func(m *message.Message) {
			delay.Message(m, delay.For(time.Second))
			m.Metadata[recordkey.Properties] = "x"
		}, []string{"1s"}, time.Second},
		"until a time that is over": {func(m *message.Message) { delay.Message(m, delay.Until(time.Now().Add(-time.Minute))) }, nil, 0},
		"garbled": {func(m *message.Message) {
			m.Metadata[delay.DelayedUntilKey], m.Metadata[delay.DelayedForKey] = "tomorrow", "long"
		}, nil, 0},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, tiersWait, arrivals)
			calls := 0
			h := func(msg *message.Message) ([]*message.Message, error) {
				calls++
				record, _ := retry.ReadRecord(msg.Metadata)
				assert.Zero(t, record.Failures)
				return nil, errDown
			}
			began := time.Now()
			msg := messageOf(routed)
			row.set(msg)
			handles(t, tiered.Middleware(h), msg)
			var waited []string
			if calls == 0 {
				waited = rounds(t, routed, tiered, sent, h)
			}
			assert.Equal(t, row.tiers, waited)
			assert.Equal(t, row.waits, time.Since(began))
			assert.Equal(t, 1, calls)
			last := sent.last()
			assert.Equal(t, "1s.orders", last.topic, "the failure waits by the schedule, and is not delayed again")
			assert.Equal(t, "1", last.msg.Metadata[recordkey.Failures])
			assert.NotContains(t, last.msg.Metadata, recordkey.Remaining)
		})
	}
	t.Run("where the Pub/Sub delays", func(t *testing.T) {
		tiered, sent := setup(t, tiersWait)
		msg := messageOf(routed)
		delay.Message(msg, delay.For(time.Hour))
		calls := 0
		handles(t, tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
			calls++
			return nil, nil
		}), msg)
		assert.Equal(t, 1, calls)
		assert.Empty(t, sent.copies)
	})
}

func TestJitterOutOfBoundsIsRefused(t *testing.T) {
	for _, wrong := range []float64{-0.1, 1.01, math.NaN(), math.Inf(1), math.Inf(-1)} {
		config := configOf(&recorder{})
		config.Policy.Jitter = wrong
		require.ErrorContains(t, config.Policy.Validate(), "Jitter is ")
		require.ErrorContains(t, config.Policy.Validate(), "must be from 0 (none) to 1")
		require.ErrorContains(t, retry.Options{Policy: &config.Policy}.Validate(), "Jitter is ")
	}
	for _, right := range []float64{0, math.SmallestNonzeroFloat64, 0.2, 1} {
		config := configOf(&recorder{})
		config.Policy.Jitter = right
		require.NoError(t, config.Policy.Validate())
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
	for _, lane := range backoff.Lanes(time.Second, 0.2) {
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
		want = append(want, backoff.Lanes(delay, 0.4)...)
	}
	assert.Equal(t, want.Tiers(), config.Tiers())
	assert.Len(t, config.Tiers(), 17)
}
