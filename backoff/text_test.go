package backoff_test

import (
	"encoding/json"
	"flag"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
)

func TestParseSchedule(t *testing.T) {
	t.Parallel()
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
		"bounds":           {"1ms 87600h", backoff.Schedule{backoff.MinDelay, backoff.MaxDelay}, "1ms 87600h"},
		"most retries":     {"1s*999 1s", backoff.Constant(s, backoff.MaxRetries), "1s*1000"},
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
	t.Parallel()
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
	t.Parallel()

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

func TestMarshalTextRefusesWhatCannotBeReadBack(t *testing.T) {
	t.Parallel()
	s := backoff.Exponential(time.Second, math.NaN(), 2)

	_, err := s.MarshalText()

	require.EqualError(t, err, s.Validate().Error())
}

func TestUnmarshalTextKeepsTheValueOnError(t *testing.T) {
	t.Parallel()
	s := backoff.Schedule{time.Second}

	for _, text := range []string{" ", "5s 0s"} {
		require.Error(t, s.UnmarshalText([]byte(text)))
		assert.Equal(t, backoff.Schedule{time.Second}, s)
	}
}

func TestScheduleAsFlag(t *testing.T) {
	t.Parallel()
	var s backoff.Schedule
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	flags.TextVar(&s, "retry", backoff.Constant(time.Second, 3), "delays before the retries")

	assert.Equal(t, "1s*3", flags.Lookup("retry").DefValue)
	require.NoError(t, flags.Parse([]string{"-retry", "2s 3s"}))
	assert.Equal(t, backoff.Schedule{2 * time.Second, 3 * time.Second}, s)
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
