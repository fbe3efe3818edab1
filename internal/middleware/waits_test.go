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
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
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
	now := time.Now()
	from := origin{topic: "orders", handler: "billing"}
	var tiered TieredRetry
	f := tiered.failureOf(backoff.RetryAfter(errors.New("the bank is down"), requested))
	host := now.Add(clock())
	d := p.decide(&situation{origin: from, called: true}, &f, host)
	require.Equal(t, retry.Retried, d.outcome)
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
		d.record.Write(metadata)
		host = now.Add(w.waited + clock())
		s := situation{origin: from}
		var found bool
		s.record, found = retry.ReadRecord(metadata)
		require.True(t, found, "%v", metadata)
		assert.Equal(t, d.record.Remaining, s.record.Remaining, "no part is lost when it is written")
		rest := s.record.Remaining
		if d = p.decide(&s, &failure{}, host); d.outcome == "" {
			break
		}
		require.Equal(t, retry.Parked, d.outcome)
		require.Less(t, d.record.Remaining, rest, "it circles")
	}
	for _, promised := range promises {
		assert.Equal(t, w.waited, promised.at+promised.delay, "the delay of the record, the event and the log is true")
	}
	return w
}

func randomTiers(random *rand.Rand) []backoff.Tier {
	tiers := []backoff.Tier{backoff.Tier(time.Duration(random.IntN([]int{500, 5000}[random.IntN(2)])+1) * time.Millisecond)}
	for len(tiers) < 1+random.IntN(6) {
		last := tiers[len(tiers)-1]
		tiers = append(tiers, last+backoff.Tier((time.Duration(random.Int64N(int64(20*last)))+time.Millisecond).Truncate(time.Millisecond)))
	}
	return tiers
}

func policyWith(tiers []backoff.Tier) *policy {
	config := retry.Policy{MaxDelay: backoff.MaxDelay}
	for _, tier := range tiers {
		config.Schedule = append(config.Schedule, time.Duration(tier))
	}
	p := policyOf(config, true)
	return &p
}

// A requested delay is never cut, and never longer than one shortest tier more, or a second where that is below 50 ms. The clocks of the hosts do not matter.
func TestRequestedDelaysOverRandomTiers(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Log("seed:", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	exact := func() time.Duration { return 0 }
	wrong := func() time.Duration { return time.Duration(random.Int64N(int64(12*time.Hour))) - 6*time.Hour }
	for range 500 {
		p := policyWith(randomTiers(random))
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
		late := shortest
		if shortest < 50*time.Millisecond {
			late = time.Second
		}
		assert.LessOrEqual(t, w.waited, requested+late, "%v, tiers %v", requested, p.tiers)
		if below, found := slices.BinarySearch(p.tiers, roundTier); found && longest == time.Second { // else longer tiers are rare, or alone
			assert.LessOrEqual(t, len(w.tiers), int(requested/time.Second)+below*maxShortRounds+1, "%v, tiers %v", requested, p.tiers)
		}
		if slices.Contains(p.tiers, backoff.Tier(requested)) {
			assert.Equal(t, []backoff.Tier{backoff.Tier(requested)}, w.tiers)
		}
		assert.Equal(t, w, simulate(t, p, requested, wrong), "%v, tiers %v: the clocks of the hosts", requested, p.tiers)
		if t.Failed() {
			return
		}
	}
}

// A tier of a second is added where others are shorter, so that a message is published about once a second, and at most 20 times for the
// last one.
func TestShortTiersGetOneOfASecond(t *testing.T) {
	t.Parallel()
	exact := func() time.Duration { return 0 }
	ms, second := backoff.Tier(time.Millisecond), backoff.Tier(time.Second)
	for _, row := range []struct {
		tiers, declared []backoff.Tier
		requested       time.Duration
		rounds          int
		waited          time.Duration
	}{
		{[]backoff.Tier{100 * ms, 200 * ms}, []backoff.Tier{100 * ms, 200 * ms, second}, 10 * time.Second, 10, 10 * time.Second},
		{[]backoff.Tier{100 * ms, 200 * ms}, []backoff.Tier{100 * ms, 200 * ms, second}, 10750 * time.Millisecond, 14, 10800 * time.Millisecond},
		{[]backoff.Tier{20 * ms}, []backoff.Tier{20 * ms, second}, time.Hour, 3600, time.Hour},
		{[]backoff.Tier{20 * ms}, []backoff.Tier{20 * ms, second}, 390 * time.Millisecond, 20, 400 * time.Millisecond},
		{[]backoff.Tier{20 * ms}, []backoff.Tier{20 * ms, second}, 410 * time.Millisecond, 1, time.Second},
		{[]backoff.Tier{ms}, []backoff.Tier{ms, second}, 1999 * time.Millisecond, 2, 2 * time.Second},
		{[]backoff.Tier{100 * ms, 5 * second}, []backoff.Tier{100 * ms, second, 5 * second}, 4900 * time.Millisecond, 13, 4900 * time.Millisecond},
		{[]backoff.Tier{500 * ms, 5 * second}, []backoff.Tier{500 * ms, 5 * second}, 4900 * time.Millisecond, 1, 5 * time.Second},
		{[]backoff.Tier{second, 5 * second}, []backoff.Tier{second, 5 * second}, 4 * time.Second, 4, 4 * time.Second},
		{[]backoff.Tier{5 * second}, []backoff.Tier{5 * second}, time.Second, 1, 5 * time.Second},
	} {
		p := policyWith(row.tiers)
		assert.Equal(t, row.declared, p.tiers)
		w := simulate(t, p, row.requested, exact)
		assert.Len(t, w.tiers, row.rounds, "%+v", row)
		assert.Equal(t, row.waited, w.waited, "%+v", row)
	}
	relay := Tiers(retry.Policy{Schedule: backoff.Schedule{time.Millisecond}}, false)
	assert.Equal(t, []backoff.Tier{ms}, relay, "it waits until the due time of each message")
}

func FuzzForgedRemaining(f *testing.F) {
	for _, text := range []string{"", "1s", "-1s", "87600h", "87600h0m0.001s", "NaN", "1e9h", "9223372036854775807ns", "0.1ns", "+1h", "1h-1s", "\x00"} {
		f.Add(text)
	}
	p := policyWith([]backoff.Tier{backoff.Tier(time.Hour), backoff.Tier(8760 * time.Hour)})
	f.Fuzz(func(t *testing.T, text string) {
		now := time.Now()
		metadata := message.Metadata{recordkey.Failures: "1", recordkey.Topic: "orders", recordkey.Remaining: text}
		var waited time.Duration
		for round := 0; ; round++ {
			s := situation{origin: origin{topic: "orders"}, record: recordOn("orders", metadata)}
			d := p.decide(&s, &failure{}, now.Add(waited))
			if d.outcome == "" {
				break
			}
			waited += time.Duration(d.tier)
			metadata = message.Metadata{}
			d.record.Write(metadata)
			if round > 10+8760 {
				t.Fatalf("%q circles", text)
			}
		}
		if waited > backoff.MaxDelay {
			t.Errorf("%q waits %v", text, waited)
		}
	})
}
