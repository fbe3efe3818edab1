package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
)

const (
	ms      = time.Millisecond
	tooLong = time.Duration(math.MaxInt64) // what an overflow becomes
)

func TestConstructors(t *testing.T) {
	const s, m, h = time.Second, time.Minute, time.Hour

	for name, tt := range map[string]struct {
		got  backoff.Schedule
		want backoff.Schedule
	}{
		"constant":                        {backoff.Constant(10*s, 3), backoff.Schedule{10 * s, 10 * s, 10 * s}},
		"constant keeps fractions":        {backoff.Constant(1500*time.Microsecond, 1), backoff.Schedule{1500 * time.Microsecond}},
		"linear":                          {backoff.Linear(10*s, 3), backoff.Schedule{10 * s, 20 * s, 30 * s}},
		"linear overflows":                {backoff.Linear(math.MaxInt64/2, 4), backoff.Schedule{math.MaxInt64 / 2, math.MaxInt64 - 1, tooLong, tooLong}},
		"linear underflows":               {backoff.Linear(math.MinInt64/2, 3), backoff.Schedule{math.MinInt64 / 2, math.MinInt64, math.MinInt64}},
		"linear zero":                     {backoff.Linear(0, 2), backoff.Schedule{0, 0}},
		"exponential":                     {backoff.Exponential(s, 5, 4), backoff.Schedule{s, 5 * s, 25 * s, 2*m + 5*s}},
		"factor 1":                        {backoff.Exponential(s, 1, 3), backoff.Schedule{s, s, s}},
		"fraction grows":                  {backoff.Exponential(ms, 1.5, 5), backoff.Schedule{1 * ms, 2 * ms, 3 * ms, 4 * ms, 6 * ms}},
		"no noise at 1.1":                 {backoff.Exponential(s, 1.1, 4), backoff.Schedule{1000 * ms, 1100 * ms, 1210 * ms, 1331 * ms}},
		"rounds up":                       {backoff.Exponential(1001*ms, 1.5, 2), backoff.Schedule{1001 * ms, 1502 * ms}},
		"rounds up a nanosecond":          {backoff.Exponential(s+1, 2, 2), backoff.Schedule{1001 * ms, 2001 * ms}},
		"rounds up a day and a bit":       {backoff.Exponential(24*h+1, 1, 1), backoff.Schedule{24*h + ms}},
		"not rounded up to a millisecond": {backoff.Exponential(100, 2, 2), backoff.Schedule{100, 200}},
		"longest exact":                   {backoff.Exponential(backoff.MaxDelay, 1, 2), backoff.Schedule{backoff.MaxDelay, backoff.MaxDelay}},
		"exponential overflows":           {backoff.Exponential(365*24*h, 100, 4), backoff.Schedule{365 * 24 * h, 36500 * 24 * h, tooLong, tooLong}},
		"overflows in the float":          {backoff.Exponential(s, math.MaxFloat64, 3), backoff.Schedule{s, tooLong, tooLong}},
		"overflows by its rounding":       {backoff.Exponential(math.MaxInt64, 1, 1), backoff.Schedule{tooLong}},
		"exponential of zero":             {backoff.Exponential(0, 2, 3), backoff.Schedule{0, 0, 0}},
		"exponential of negative":         {backoff.Exponential(-s, 2, 2), backoff.Schedule{-s, -s}},
		"zero times infinity":             {backoff.Exponential(0, math.MaxFloat64, 3), backoff.Schedule{0, 0, 0}},
		"no retries":                      {backoff.Constant(s, 0), backoff.Schedule{}},
		"a negative count":                {backoff.Exponential(s, 2, math.MinInt), backoff.Schedule{}},
		"Cap":                             {backoff.Exponential(s, 5, 4).Cap(30 * s), backoff.Schedule{s, 5 * s, 25 * s, 30 * s}},
		"Cap cuts an overflow":            {backoff.Exponential(s, math.MaxFloat64, 3).Cap(h), backoff.Schedule{s, h, h}},
		"Cap keeps a bad bound":           {backoff.Constant(s, 2).Cap(-s), backoff.Schedule{-s, -s}},
		"Cap of the empty schedule":       {backoff.Schedule{}.Cap(s), backoff.Schedule{}},
		"Cap longer than every delay":     {backoff.Constant(s, 2).Cap(h), backoff.Schedule{s, s}},
	} {
		assert.Equal(t, []time.Duration(tt.want), []time.Duration(tt.got), name)
	}
}

func TestExponentialNeverShrinksAboveOne(t *testing.T) {
	for _, factor := range []float64{1.0000001, 1.1, 1.5, math.Phi, 2, 3, 1e10} {
		s := backoff.Exponential(7*ms, factor, 1000)
		for i := 1; i < len(s); i++ {
			require.GreaterOrEqual(t, s[i], s[i-1], "factor %v, retry %d", factor, i+1)
		}
	}
}

func TestExponentialWholeFactorIsExact(t *testing.T) {
	for _, factor := range []int64{2, 3, 5, 7, 10} {
		want := 3 * ms
		for i, got := range backoff.Exponential(want, float64(factor), 100) {
			if want > backoff.MaxDelay {
				break
			}
			require.Equal(t, want, got, "factor %d, retry %d", factor, i+1)
			want *= time.Duration(factor)
		}
	}
}

func TestCapLeavesTheReceiver(t *testing.T) {
	s := backoff.Schedule{time.Second, time.Hour}

	capped := s.Cap(time.Minute)
	capped[0] = time.Millisecond

	assert.Equal(t, backoff.Schedule{time.Second, time.Hour}, s)
}

func TestValidate(t *testing.T) {
	for name, tt := range map[string]struct {
		schedule backoff.Schedule
		want     string // empty: valid
	}{
		"bounds":               {backoff.Schedule{time.Millisecond, backoff.MaxDelay}, ""},
		"descending":           {backoff.Schedule{time.Hour, time.Second}, ""},
		"most retries":         {backoff.Constant(time.Second, 1000), ""},
		"capped overflow":      {backoff.Exponential(time.Second, 10, 100).Cap(time.Hour), ""},
		"nil":                  {nil, "backoff: no retries: want 1 to 1000, for example backoff.Exponential(time.Second, 5, 4)"},
		"negative retries":     {backoff.Linear(time.Second, -1), "backoff: no retries: want 1 to 1000, for example backoff.Exponential(time.Second, 5, 4)"},
		"too many":             {backoff.Constant(time.Second, math.MaxInt), "backoff: 1001 retries: want at most 1000"},
		"zero":                 {backoff.Schedule{0}, "backoff: retry 1: delay 0s is too short: want at least 1ms"},
		"negative":             {backoff.Constant(-5*time.Second, 1), "backoff: retry 1: delay -5s is too short: want at least 1ms"},
		"factor below 1":       {backoff.Exponential(8*time.Second, 0.5, 3).Cap(time.Hour), "backoff: retries 1 to 3: the factor is below 1: each delay would be shorter than the one before; want a finite factor of 1 or more, or name the delays one by one: backoff.Schedule{...}"},
		"fraction":             {backoff.Linear(2500*time.Microsecond, 2), "backoff: retry 1: delay 2.5ms is finer than a millisecond: want a multiple of 1ms"},
		"too long":             {backoff.Schedule{backoff.MaxDelay + ms}, "backoff: retry 1: delay 87600h0m0.001s is too long: want at most 87600h"},
		"too long by a bit":    {backoff.Schedule{backoff.MaxDelay + 1}, "backoff: retry 1: delay 87600h0m0.000000001s is too long: want at most 87600h"},
		"overflow":             {backoff.Linear(math.MaxInt64, 2), "backoff: retries 1 to 2: delay 2562047h47m16.854775807s is too long: want at most 87600h"},
		"underflow":            {backoff.Linear(math.MinInt64, 1), "backoff: retry 1: delay -2562047h47m16.854775808s is too short: want at least 1ms"},
		"factor NaN":           {backoff.Exponential(time.Second, math.NaN(), 3), "backoff: retries 1 to 3: the factor is NaN: want a finite factor of 1 or more"},
		"factor +Inf":          {backoff.Exponential(time.Second, math.Inf(1), 1), "backoff: retry 1: the factor is infinite: want a finite factor of 1 or more"},
		"factor -Inf":          {backoff.Exponential(time.Second, math.Inf(-1), 1), "backoff: retry 1: the factor is infinite: want a finite factor of 1 or more"},
		"factor 0":             {backoff.Exponential(time.Second, 0, 1), "backoff: retry 1: the factor is 0 or negative: want a finite factor of 1 or more"},
		"factor negative":      {backoff.Exponential(time.Second, -2, 1), "backoff: retry 1: the factor is 0 or negative: want a finite factor of 1 or more"},
		"Cap keeps NaN":        {backoff.Exponential(time.Second, math.NaN(), 1).Cap(time.Hour), "backoff: retry 1: the factor is NaN: want a finite factor of 1 or more"},
		"Cap with a bad bound": {backoff.Constant(time.Hour, 1).Cap(0), "backoff: retry 1: delay 0s is too short: want at least 1ms"},
		"every fault": {
			backoff.Schedule{time.Second, 0, 0, time.Second, -1, backoff.MaxDelay + ms},
			"backoff: retries 2 to 3: delay 0s is too short: want at least 1ms\n" +
				"backoff: retry 5: delay -1ns is too short: want at least 1ms\n" +
				"backoff: retry 6: delay 87600h0m0.001s is too long: want at most 87600h",
		},
		"too many and faulty": {
			make(backoff.Schedule, 5000),
			"backoff: 5000 retries: want at most 1000\n" +
				"backoff: retries 1 to 1000: delay 0s is too short: want at least 1ms",
		},
	} {
		err := tt.schedule.Validate()
		if tt.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.EqualError(t, err, tt.want, name)
	}
}
