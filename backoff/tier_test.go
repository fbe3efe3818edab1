package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
)

func TestTierString(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		tier time.Duration
		want string
	}{
		"milliseconds":       {1500 * time.Millisecond, "1500ms"},
		"shortest":           {backoff.MinDelay, "1ms"},
		"seconds":            {10 * time.Second, "10s"},
		"no whole minute":    {90 * time.Second, "90s"},
		"two minutes":        {120 * time.Second, "2m"},
		"125 s":              {2*time.Minute + 5*time.Second, "125s"},
		"hour":               {60 * time.Minute, "1h"},
		"no whole hour":      {90 * time.Minute, "90m"},
		"day stays in hours": {24 * time.Hour, "24h"},
		"longest":            {backoff.MaxDelay, "87600h"},
		// Not valid, but they must not look like a valid tier.
		"zero":         {0, "0s"},
		"negative":     {-90 * time.Second, "-90s"},
		"microseconds": {1500 * time.Microsecond, "1500us"},
		"overflow":     {math.MaxInt64, "9223372036854775807ns"},
		"underflow":    {math.MinInt64, "-9223372036854775808ns"},
	} {
		assert.Equal(t, tt.want, backoff.Tier(tt.tier).String(), name)
	}
}

func TestParseTierRefuses(t *testing.T) {
	t.Parallel()

	for word, want := range map[string]string{
		"":       `backoff: tier "": want a whole number and one unit of h, m, s or ms, such as 90s`,
		"1d":     `backoff: tier "1d": want a whole number and one unit of h, m, s or ms, such as 90s`,
		"10s ":   `backoff: tier "10s ": want a whole number and one unit of h, m, s or ms, such as 90s`,
		"60s":    `backoff: tier "60s": want the spelling "1m"`,
		"1m30s":  `backoff: tier "1m30s": want the spelling "90s"`,
		"1.5s":   `backoff: tier "1.5s": want the spelling "1500ms"`,
		"010s":   `backoff: tier "010s": want the spelling "10s"`,
		"+10s":   `backoff: tier "+10s": want the spelling "10s"`,
		"1500us": `backoff: tier "1500us": delay 1.5ms is finer than a millisecond: want a multiple of 1ms`,
		"0s":     `backoff: tier "0s": delay 0s is too short: want at least 1ms`,
		"-10s":   `backoff: tier "-10s": delay -10s is too short: want at least 1ms`,
		"87601h": `backoff: tier "87601h": delay 87601h0m0s is too long: want at most 87600h`,
	} {
		tier, err := backoff.ParseTier(word)
		require.EqualError(t, err, want, word)
		assert.Zero(t, tier, word)
	}
}

func FuzzTier(f *testing.F) {
	for _, delay := range []int64{1, 1000, 1500, 60_000, 90_000, 3_600_000, 315_360_000_000, 0, -1, 315_360_000_001} {
		f.Add(delay)
	}
	f.Fuzz(func(t *testing.T, milliseconds int64) {
		tier := backoff.Tier(milliseconds) * backoff.Tier(time.Millisecond) // wraps around, to tiers of all kinds
		word := tier.String()
		if delay := time.Duration(tier); delay < backoff.MinDelay || delay > backoff.MaxDelay {
			_, err := backoff.ParseTier(word)
			require.Error(t, err)
			return
		}

		require.Regexp(t, `^[1-9][0-9]*(h|m|s|ms)$`, word)
		parsed, err := backoff.ParseTier(word)
		require.NoError(t, err)
		require.Equal(t, tier, parsed)
	})
}

func FuzzParseTier(f *testing.F) {
	for _, word := range []string{"10s", "60s", "1m30s", "1.5s", "+1s", "0s", "1500us", "1d", ""} {
		f.Add(word)
	}
	f.Fuzz(func(t *testing.T, word string) {
		tier, err := backoff.ParseTier(word)
		if err != nil {
			require.Zero(t, tier)
			return
		}
		require.Equal(t, word, tier.String(), "one spelling per tier")
	})
}
