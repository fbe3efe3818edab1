package middleware

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
)

// wait is what a message has waited for.
type wait struct {
	tiers  []backoff.Tier
	waited time.Duration
}

// simulate fails a message that requests a delay, and brings it back from tier to tier until its handler is to be called. The clock
// of the host of each round is wrong by what clock returns.
func simulate(t *testing.T, p *policy, requested time.Duration, clock func() time.Duration) (w wait) {
	t.Helper()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	from := origin{topic: "orders", handler: "billing"}
	var retry TieredRetry
	f := retry.failureOf(backoff.RetryAfter(errors.New("the bank is down"), requested))
	host := now.Add(clock())
	d := p.decide(&situation{origin: from, called: true}, &f, host)
	require.Equal(t, Retried, d.outcome)
	type promise struct{ at, delay time.Duration }
	var promises []promise
	for {
		require.Less(t, len(w.tiers), 100_000, "it circles")
		require.Contains(t, p.tiers, d.tier)
		assert.True(t, host.Add(d.delay).Equal(d.record.DueAt))
		promises = append(promises, promise{w.waited, d.delay})
		if len(w.tiers) > 0 && d.delay > 0 {
			assert.LessOrEqual(t, d.record.Remaining, max(requested, 0))
		}
		assert.LessOrEqual(t, d.record.Remaining, backoff.MaxDelay)
		assert.Equal(t, 1, d.record.Failures)

		w.tiers = append(w.tiers, d.tier)
		w.waited += time.Duration(d.tier)
		metadata := message.Metadata{}
		d.record.write(metadata)
		host = now.Add(w.waited + clock())
		s := situation{origin: from}
		require.True(t, s.record.read(metadata, host), "%v", metadata)
		assert.Equal(t, d.record.Remaining, s.record.Remaining, "no part is lost when it is written")
		rest := s.record.Remaining
		if d = p.decide(&s, &failure{}, host); d.outcome == "" {
			break
		}
		require.Equal(t, Parked, d.outcome)
		require.Less(t, d.record.Remaining, rest, "it circles")
	}
	for _, promised := range promises {
		assert.Equal(t, w.waited, promised.at+promised.delay, "the delay of the record, the event and the log is true")
	}
	return w
}

func randomTiers(random *rand.Rand) []backoff.Tier {
	tiers := []backoff.Tier{backoff.Tier(time.Duration(random.IntN(5000)+1) * time.Millisecond)}
	for len(tiers) < 1+random.IntN(6) {
		last := tiers[len(tiers)-1]
		tiers = append(tiers, last+backoff.Tier((time.Duration(random.Int64N(int64(20*last)))+time.Millisecond).Truncate(time.Millisecond)))
	}
	return tiers
}

func policyOf(tiers []backoff.Tier) *policy {
	p := &policy{tiers: tiers, tiersWait: true}
	for _, tier := range tiers {
		p.schedule = append(p.schedule, time.Duration(tier))
	}
	return p
}

// A requested delay is never cut, and never longer than one shortest tier more. The clocks of the hosts do not matter.
func TestRequestedDelaysOverRandomTiers(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Log("seed:", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	exact := func() time.Duration { return 0 }
	wrong := func() time.Duration { return time.Duration(random.Int64N(int64(12*time.Hour))) - 6*time.Hour }
	for range 500 {
		p := policyOf(randomTiers(random))
		shortest, longest := time.Duration(p.tiers[0]), time.Duration(p.tiers[len(p.tiers)-1])
		requested := time.Duration(random.Int64N(int64(50*longest))) + 1
		switch random.IntN(4) {
		case 0:
			requested = requested.Round(time.Second) + time.Second
		case 1:
			requested = time.Duration(p.tiers[random.IntN(len(p.tiers))]) // exactly one
		case 2:
			requested = time.Duration(random.Int64N(int64(2*shortest))) + 1
		}
		w := simulate(t, p, requested, exact)
		assert.GreaterOrEqual(t, w.waited, requested, "%v, tiers %v", requested, p.tiers)
		assert.LessOrEqual(t, w.waited, requested+shortest, "%v, tiers %v", requested, p.tiers)
		if slices.Contains(p.tiers, backoff.Tier(requested)) {
			assert.Equal(t, []backoff.Tier{backoff.Tier(requested)}, w.tiers)
		}
		assert.Equal(t, w, simulate(t, p, requested, wrong), "%v, tiers %v: the clocks of the hosts", requested, p.tiers)
		if t.Failed() {
			return
		}
	}
}

func TestMaxDelayOverRandomTiers(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 0))
	for range 50 {
		p := policyOf([]backoff.Tier{
			backoff.Tier(time.Duration(random.IntN(3_600_000)+60_000) * time.Millisecond), backoff.Tier(24 * time.Hour), backoff.Tier(1000 * time.Hour),
		})
		for _, requested := range []time.Duration{backoff.MaxDelay - 1, backoff.MaxDelay, backoff.MaxDelay + 1, 1<<63 - 1} {
			w := simulate(t, p, requested, func() time.Duration { return 0 })
			assert.GreaterOrEqual(t, w.waited, min(requested, backoff.MaxDelay))
			assert.LessOrEqual(t, w.waited, backoff.MaxDelay+time.Duration(p.tiers[0]))
		}
	}
}

// An hour over tiers of seconds takes 720 publishes.
func TestExtraTiersMakeFewerRounds(t *testing.T) {
	t.Parallel()
	exact := func() time.Duration { return 0 }
	config := TieredRetryConfig{Schedule: backoff.Schedule{time.Second, 5 * time.Second}}
	assert.Len(t, simulate(t, &policy{schedule: config.Schedule, tiers: config.Tiers(), tiersWait: true}, time.Hour, exact).tiers, 720)

	config.ExtraTiers = backoff.Ladder(time.Second, 30*24*time.Hour)
	p := &policy{schedule: config.Schedule, tiers: config.Tiers(), tiersWait: true}
	seed := rand.Uint64()
	t.Log("seed:", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 1000 {
		requested := time.Duration(random.Int64N(int64(12*24*time.Hour))) + 1
		if w := simulate(t, p, requested, exact); len(w.tiers) > 12 {
			t.Fatalf("%v takes %d publishes: %v", requested, len(w.tiers), w.tiers)
		}
	}
}

// The next longer tier replaces one that refuses, then a shorter one, in rounds. What remains is waited for.
func TestRefusingTiersAreReplaced(t *testing.T) {
	t.Parallel()
	second, minute, hour := backoff.Tier(time.Second), backoff.Tier(time.Minute), backoff.Tier(time.Hour)
	tiers := []backoff.Tier{second, minute, hour}
	for _, waits := range []bool{true, false} {
		p := policy{tiers: tiers, tiersWait: waits}
		rest := func(d time.Duration) time.Duration {
			if waits {
				return d
			}
			return 0
		}
		for _, row := range []struct {
			wait  time.Duration
			avoid []backoff.Tier
			tier  backoff.Tier
			rest  time.Duration
			found bool
		}{
			{time.Second, nil, second, 0, true},
			{time.Second, []backoff.Tier{second}, minute, 0, true},
			{time.Second, []backoff.Tier{minute, second}, hour, 0, true},
			{time.Second, []backoff.Tier{hour, minute, second}, second, 0, false},
			{time.Minute, []backoff.Tier{minute}, hour, 0, true},
			{time.Minute, []backoff.Tier{minute, hour}, second, rest(59 * time.Second), true},
			{2 * time.Hour, []backoff.Tier{hour}, minute, rest(119 * time.Minute), true},
			{2 * time.Hour, []backoff.Tier{hour, minute}, second, rest(2*time.Hour - time.Second), true},
		} {
			tier, rest, found := p.place(row.wait, row.avoid)
			assert.Equal(t, row.found, found, "%+v", row)
			if found {
				assert.Equal(t, row.tier, tier, "%+v", row)
				assert.Equal(t, row.rest, rest, "%+v", row)
			}
		}
	}
}

func FuzzForgedRemaining(f *testing.F) {
	for _, text := range []string{"", "1s", "-1s", "87600h", "87600h0m0.001s", "NaN", "1e9h", "9223372036854775807ns", "0.1ns", "+1h", "1h-1s", "\x00"} {
		f.Add(text)
	}
	p := policyOf([]backoff.Tier{backoff.Tier(time.Hour), backoff.Tier(8760 * time.Hour)})
	f.Fuzz(func(t *testing.T, text string) {
		now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		metadata := message.Metadata{FailuresKey: "1", TopicKey: "orders", RemainingKey: text}
		var waited time.Duration
		for round := 0; ; round++ {
			s := situation{origin: origin{topic: "orders"}}
			if !s.record.read(metadata, now.Add(waited)) {
				s.record = Record{}
			}
			d := p.decide(&s, &failure{}, now.Add(waited))
			if d.outcome == "" {
				break
			}
			waited += time.Duration(d.tier)
			metadata = message.Metadata{}
			d.record.write(metadata)
			if round > 10+8760 {
				t.Fatalf("%q circles", text)
			}
		}
		if waited > backoff.MaxDelay {
			t.Errorf("%q waits %v", text, waited)
		}
	})
}
