package middleware

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

var errSpread = errors.New("the bank is down")

// spreadPolicy has tiers of 1s, 5s and 1m, with the lanes of 5s: 5s, 5.125s ... 5.875s.
func spreadPolicy(tiersWait bool) policy {
	return policyOf(retry.Policy{
		Schedule: backoff.Schedule{5 * time.Second, time.Minute}, ExtraTiers: []time.Duration{time.Second}, Jitter: 0.2,
	}, tiersWait)
}

func TestJitterChoosesTheDelayByChance(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		chance float64
		lane   time.Duration
		due    time.Duration // where the backend waits until the due time
	}{
		{0, 5000, 5000},
		{0.124, 5000, 5124},
		{0.125, 5125, 5125},
		{0.5, 5500, 5500},
		{0.5004999, 5500, 5500}, // whole milliseconds
		{0.876, 5875, 5876},
		{math.Nextafter(1, 0), 5875, 5999},
	} {
		s := situation{called: true, chance: row.chance}
		f := failure{err: errSpread}
		lane, due := row.lane*time.Millisecond, row.due*time.Millisecond

		p := spreadPolicy(true)
		d := p.decide(&s, &f, now)
		assert.Equal(t, []any{retry.Retried, backoff.Tier(lane), lane, 875 * time.Millisecond, now.Add(lane), time.Duration(0)},
			[]any{d.outcome, d.tier, d.delay, d.spread, d.record.DueAt, d.record.Remaining}, "%v, tiers wait", row.chance)

		p = spreadPolicy(false)
		d = p.decide(&s, &f, now)
		assert.Equal(t, []any{retry.Retried, backoff.Tier(lane), due, time.Second, now.Add(due), time.Duration(0)},
			[]any{d.outcome, d.tier, d.delay, d.spread, d.record.DueAt, d.record.Remaining}, "%v, due times", row.chance)
	}
}

// Every action, with every chance: only delays of a schedule are spread.
func TestOnlyDelaysOfASchedulesAreSpread(t *testing.T) {
	t.Parallel()
	other := backoff.Schedule{2 * time.Second}
	for name, row := range map[string]struct {
		f       failure
		probe   bool
		delayed time.Duration
		want    time.Duration // the shortest delay
		spread  bool
	}{
		"schedule":                    {f: failure{err: errSpread}, want: 5 * time.Second, spread: true},
		"retry with":                  {f: failure{err: errSpread, action: retry.RetryWith(other)}, want: 2 * time.Second, spread: true},
		"requested":                   {f: failure{err: errSpread, requested: 6 * time.Second}, want: 6 * time.Second},
		"requested, retry with":       {f: failure{err: errSpread, requested: 6 * time.Second, action: retry.RetryWith(other)}, want: 6 * time.Second},
		"requested, the tier's delay": {f: failure{err: errSpread, requested: 5 * time.Second}, want: 5 * time.Second},
		"retry after":                 {f: failure{err: errSpread, action: retry.RetryAfter(5 * time.Second)}, want: 5 * time.Second},
		"snooze":                      {f: failure{err: errSpread, action: retry.Snooze(5 * time.Second)}, want: 5 * time.Second},
		"pause":                       {f: failure{err: errSpread, action: retry.Pause(5 * time.Second)}, want: 5 * time.Second},
		"a probe":                     {f: failure{err: errSpread}, probe: true, want: time.Second},
		"arrives, delayed":            {delayed: 5 * time.Second, want: 5 * time.Second},
	} {
		for _, tiersWait := range []bool{true, false} {
			p := policyOf(retry.Policy{
				Schedule: backoff.Schedule{5 * time.Second}, ExtraTiers: []time.Duration{time.Second}, Jitter: 0.5, Rules: []retry.Rule{{Then: retry.RetryWith(other)}}, MaxDelay: time.Minute,
			}, tiersWait)
			longest := time.Duration(0)
			for i := range 64 {
				s := situation{called: row.f.err != nil, probe: row.probe, delayed: row.delayed, chance: float64(i) / 64}
				d := p.decide(&s, &row.f, time.Now())
				require.GreaterOrEqual(t, d.delay, row.want, name)
				require.Less(t, d.delay, row.want*3/2, name)
				require.Equal(t, row.spread, d.spread > 0, name)
				longest = max(longest, d.delay)
			}
			assert.Equal(t, row.spread, longest > row.want, "%s, tiers wait %v: %v", name, tiersWait, longest)
		}
	}
}

// A requested delay waits on the same tiers as without jitter, so that it takes no more rounds.
func TestRequestedDelaysUseNoLanes(t *testing.T) {
	t.Parallel()
	for range 2000 {
		delay := time.Duration(rand.Int64N(int64(3 * time.Minute)))
		p := spreadPolicy(true)
		plain := p
		plain.jitter, plain.lanes = 0, nil
		s, f := situation{called: true, chance: rand.Float64()}, failure{err: errSpread, requested: max(delay, 1)}
		now := time.Now()
		require.Equal(t, plain.decide(&s, &f, now), p.decide(&s, &f, now), "%v", delay)
	}
}

// The next longer lane takes what a lane refuses, then a shorter one, and only then another tier.
func TestLaneThatRefusesIsReplaced(t *testing.T) {
	t.Parallel()
	for tiersWait, want := range map[bool][]string{
		true: {"5625ms", "5750ms", "5875ms", "5500ms", "5375ms", "5250ms", "5125ms", "5s",
			"1m", "61500ms", "63s", "64500ms", "66s", "67500ms", "69s", "70500ms", "1s", "dead-lettered"},
		false: {"5625ms", "5750ms", "5875ms", "5500ms", "5375ms", "5250ms", "5125ms", "5s",
			"1m", "61500ms", "63s", "64500ms", "66s", "67500ms", "69s", "70500ms", "1s", "dead-lettered"},
	} {
		p := spreadPolicy(tiersWait)
		s, f := situation{called: true, chance: 0.65}, failure{err: errSpread}
		now := time.Now()
		var tried []string
		for {
			d := p.decide(&s, &f, now)
			if d.outcome == retry.DeadLettered {
				assert.Equal(t, retry.DeadReasonNoTier, d.record.DeadReason)
				tried = append(tried, string(d.outcome))
				break
			}
			require.Equal(t, retry.Retried, d.outcome)
			require.GreaterOrEqual(t, d.delay, 5*time.Second, "never early")
			require.Equal(t, now.Add(d.delay), d.record.DueAt)
			if tiersWait {
				require.GreaterOrEqual(t, time.Duration(d.tier)+d.record.Remaining, 5*time.Second, "never early")
			} else {
				require.Equal(t, 5650*time.Millisecond, d.delay, "the due time does not depend on the tier")
			}
			tried, s.avoid = append(tried, d.tier.String()), append(s.avoid, d.tier)
		}
		assert.Equal(t, want, tried)
	}
}

func TestJitterAndMaxAge(t *testing.T) {
	t.Parallel()
	p := spreadPolicy(true)
	p.maxAge = 5500 * time.Millisecond
	for chance, want := range map[float64]retry.Outcome{0: retry.Retried, 0.5: retry.Retried, 0.7: retry.DeadLettered} {
		d := p.decide(&situation{called: true, chance: chance}, &failure{err: errSpread}, time.Now())
		assert.Equal(t, want, d.outcome, "%v", chance)
	}
	d := p.decide(&situation{called: true, chance: 0.7}, &failure{err: errSpread}, time.Now())
	assert.Equal(t, retry.DeadReasonExpired, d.record.DeadReason)
}

// Schedules, jitters and chances of any size: only ever longer, and by less than the jitter.
func TestSpreadIsOnlyEverLonger(t *testing.T) {
	t.Parallel()
	for range 5000 {
		delay := time.Duration(1+rand.Int64N(1<<rand.IntN(30))) * time.Millisecond
		jitter := 1 - rand.Float64()
		tiersWait := rand.IntN(2) == 0
		p := policyOf(retry.Policy{Schedule: backoff.Schedule{delay}, Jitter: jitter}, tiersWait)
		d := p.decide(&situation{called: true, chance: rand.Float64()}, &failure{err: errSpread}, time.Now())
		require.Equal(t, retry.Retried, d.outcome)
		require.GreaterOrEqual(t, d.delay, delay)
		require.LessOrEqual(t, d.delay, delay+d.spread)
		require.LessOrEqual(t, d.spread, time.Duration(float64(delay)*jitter)+time.Millisecond)
		require.Zero(t, d.delay%time.Millisecond)
		require.Contains(t, slices.Concat(p.tiers, p.lanes), d.tier)
		require.Zero(t, d.record.Remaining)
	}
}
