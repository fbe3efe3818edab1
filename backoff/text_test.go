package backoff_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
)

func TestParseSchedule(t *testing.T) {
	const s, m = time.Second, time.Minute

	for name, tt := range map[string]struct {
		text  string
		want  backoff.Schedule
		print string
	}{
		"plain":            {"1s 5s 25s*3 10m", backoff.Schedule{s, 5 * s, 25 * s, 25 * s, 25 * s, 10 * m}, "1s 5s 25s*3 10m"},
		"every spelling":   {"2m5s 1.5s 60s 1500us500us", backoff.Schedule{125 * s, 1500 * ms, m, 2 * ms}, "125s 1500ms 1m 2ms"},
		"any white space":  {"\t1s\n\n 2s\r\n", backoff.Schedule{s, 2 * s}, "1s 2s"},
		"runs are joined":  {"1s 1s*2 1000ms", backoff.Schedule{s, s, s, s}, "1s*4"},
		"times one":        {"1s*1", backoff.Schedule{s}, "1s"},
		"runs apart":       {"1s*2 2s 1s", backoff.Schedule{s, s, 2 * s, s}, "1s*2 2s 1s"},
		"bounds":           {"1ms 87600h", backoff.Schedule{time.Millisecond, backoff.MaxDelay}, "1ms 87600h"},
		"most retries":     {"1s*999 1s", backoff.Constant(s, 1000), "1s*1000"},
		"leading zero":     {"01s*02", backoff.Schedule{s, s}, "1s*2"},
		"plus":             {"+1s", backoff.Schedule{s}, "1s"},
		"fraction of hour": {"0.0001h", backoff.Schedule{360 * ms}, "360ms"},
	} {
		parsed, err := backoff.ParseSchedule(tt.text)
		require.NoError(t, err, name)
		assert.Equal(t, tt.want, parsed, name)
		assert.Equal(t, tt.print, parsed.String(), name)
	}
}

func TestParseScheduleRefuses(t *testing.T) {
	const (
		empty = `backoff: schedule is empty: want 1 to 1000 delays separated by spaces, such as "1s 5s 25s*3 10m"`
		delay = ": want a delay from 1ms to 87600h, such as 10s, 90s or 10s*3, and spaces between delays"
		count = ": want a whole number from 1 to 1000 after the *"
	)

	for text, want := range map[string]string{
		"":                        empty,
		" \n":                     empty,
		"1s nonsense":             `backoff: schedule, word 2, "nonsense"` + delay,
		"1s, 5s":                  `backoff: schedule, word 1, "1s,"` + delay,
		"10":                      `backoff: schedule, word 1, "10"` + delay,
		"1d":                      `backoff: schedule, word 1, "1d"` + delay,
		"1s *3":                   `backoff: schedule, word 2, "*3"` + delay,
		"99999999h":               `backoff: schedule, word 1, "99999999h"` + delay,
		"1s*":                     `backoff: schedule, word 1, "1s*"` + count,
		"1s*0":                    `backoff: schedule, word 1, "1s*0"` + count,
		"1s*-1":                   `backoff: schedule, word 1, "1s*-1"` + count,
		"1s*+2":                   `backoff: schedule, word 1, "1s*+2"` + count,
		"1s*2*2":                  `backoff: schedule, word 1, "1s*2*2"` + count,
		"1s*1001":                 `backoff: schedule, word 1, "1s*1001"` + count,
		"1s*99999999999999999999": `backoff: schedule, word 1, "1s*99999999999999999999"` + count,
		"1s*999 5s 5s":            `backoff: schedule, word 3, "5s": makes more than 1000 retries: want at most 1000`,
		"0":                       `backoff: schedule, word 1, "0": delay 0s is too short: want at least 1ms`,
		"1s -5s":                  `backoff: schedule, word 2, "-5s": delay -5s is too short: want at least 1ms`,
		"999us":                   `backoff: schedule, word 1, "999us": delay 999µs is too short: want at least 1ms`,
		"1.0005s":                 `backoff: schedule, word 1, "1.0005s": delay 1.0005s is finer than a millisecond: want a multiple of 1ms`,
		"87601h":                  `backoff: schedule, word 1, "87601h": delay 87601h0m0s is too long: want at most 87600h`,
		strings.Repeat("x", 1e6):  `backoff: schedule, word 1, "` + strings.Repeat("x", 60) + `"` + delay,
	} {
		parsed, err := backoff.ParseSchedule(text)
		require.EqualError(t, err, want, text)
		assert.Nil(t, parsed, text)
	}
}

type settings struct {
	Schedule backoff.Schedule `json:"schedule"`
}

func TestScheduleInJSON(t *testing.T) {
	for name, tt := range map[string]struct {
		schedule backoff.Schedule
		want     string
	}{
		"schedule": {backoff.Exponential(time.Second, 5, 4), `{"schedule":"1s 5s 25s 125s"}`},
		"unset":    {nil, `{"schedule":""}`},
	} {
		text, err := json.Marshal(settings{tt.schedule})
		require.NoError(t, err, name)
		require.Equal(t, tt.want, string(text), name)

		parsed := settings{backoff.Schedule{time.Hour}}
		require.NoError(t, json.Unmarshal(text, &parsed), name)
		assert.Equal(t, tt.schedule, parsed.Schedule, name)
	}
}

func TestTextThatIsRefused(t *testing.T) {
	s := backoff.Schedule{time.Second}
	for _, text := range []string{" ", "5s 0s"} {
		require.Error(t, s.UnmarshalText([]byte(text)))
		assert.Equal(t, backoff.Schedule{time.Second}, s, "it keeps its value")
	}
	unreadable := backoff.Exponential(time.Second, math.NaN(), 2)
	_, err := unreadable.MarshalText()
	require.EqualError(t, err, unreadable.Validate().Error())
}

func FuzzParseSchedule(f *testing.F) {
	for _, text := range []string{
		"", "1s 5s 25s*3 10m", "2m5s 1.5s", "1s*1000", "1s*1001", "1s*", "*3", "0", "-1s", "+1s",
		"1ms 87600h", "87600h1ms", "1.0005s", "1s,5s", "1µs*2", "9223372036854775807ns", ".1s\u00a02s", "1s\x00",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := backoff.ParseSchedule(text)
		if err != nil {
			require.Nil(t, s)
			return
		}
		require.NoError(t, s.Validate())

		printed := s.String()
		again, err := backoff.ParseSchedule(printed)
		require.NoError(t, err)
		require.Equal(t, s, again)
		require.Equal(t, printed, again.String())
	})
}

func TestTierString(t *testing.T) {
	for name, tt := range map[string]struct {
		tier time.Duration
		want string
	}{
		"milliseconds":       {1500 * time.Millisecond, "1500ms"},
		"shortest":           {time.Millisecond, "1ms"},
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
		if delay := time.Duration(tier); delay < time.Millisecond || delay > backoff.MaxDelay {
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
