package letters_test

import (
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestRedriveReportsAllFaults(t *testing.T) {
	t.Parallel()
	require.NoError(t, letters.Redrive{}.Validate())
	require.NoError(t, letters.Redrive{Limit: 1, Rate: 0.5, Canary: 10, CanaryWait: time.Minute, MaxRedead: 1}.Validate())
	err := letters.Redrive{
		Limit: -1, Rate: -0.5, Canary: -2, CanaryWait: -time.Second, MaxRedead: 1.5, Filter: letters.Filter{OlderThan: -1},
	}.Validate()
	for _, fault := range []string{
		"Redrive.Limit is -1", "Redrive.Rate is -0.5", "Redrive.Canary is -2", "Redrive.CanaryWait is -1s", "Redrive.MaxRedead is 1.5: it must be a share between 0 and 1",
		"Filter.OlderThan is -1ns",
	} {
		require.ErrorContains(t, err, fault)
	}
	for _, rate := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		require.ErrorContains(t, letters.Redrive{Rate: rate}.Validate(), "Redrive.Rate is")
	}
	for _, share := range []float64{math.NaN(), -0.1, math.Inf(1)} {
		require.ErrorContains(t, letters.Redrive{MaxRedead: share}.Validate(), "Redrive.MaxRedead is")
	}
	require.ErrorContains(t, letters.Redrive{CanaryWait: time.Second}.Validate(), "CanaryWait is 1s, and Canary is 0: set Canary")
}

func TestDiscardReportsAllFaults(t *testing.T) {
	t.Parallel()
	require.NoError(t, letters.Discard{}.Validate())
	err := letters.Discard{Limit: -1, Filter: letters.Filter{NewerThan: -1}}.Validate()
	require.ErrorContains(t, err, "Discard.Limit is -1")
	require.ErrorContains(t, err, "Filter.NewerThan is -1ns")
}

// A canary is watched as long as its letters need to die again, and a bit longer.
func TestWatch(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	lived := func(d time.Duration) *letters.Letter {
		return &letters.Letter{Record: retry.Record{FirstFailedAt: start, LastFailedAt: start.Add(d)}}
	}
	for _, c := range []struct {
		want   time.Duration
		canary []*letters.Letter
	}{
		{10 * time.Second, nil},
		{10 * time.Second, []*letters.Letter{lived(0), lived(-time.Hour), {}, {Record: retry.Record{LastFailedAt: start}}}},
		{115 * time.Second, []*letters.Letter{lived(time.Second), lived(100 * time.Second), lived(2 * time.Second)}},
		{time.Hour, []*letters.Letter{lived(3 * time.Hour)}},
	} {
		assert.Equal(t, c.want, letters.Watch(c.canary))
	}
	assert.Equal(t, time.Hour, letters.Watch([]*letters.Letter{lived(math.MaxInt64)}), "an overflow")
}

func TestRedead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		share        float64
		sent, redead int
		want         bool
	}{
		{0, 1000, 1000, false}, {0.05, 19, 19, false}, {0.05, 20, 1, false}, {0.05, 20, 2, true}, {0.05, 1000, 50, false}, {0.05, 1000, 51, true},
		{1, 100, 100, false}, {0.001, 20, 1, true},
	} {
		assert.Equal(t, c.want, letters.Redrive{MaxRedead: c.share}.Redead(c.sent, c.redead), "%+v", c)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	p := letters.Progress{Summary: letters.Summary{Total: 100, Done: 20, Other: 4, Kept: 1}, Phase: letters.Looking, Elapsed: 10 * time.Second}
	assert.Equal(t, 30*time.Second, p.Left())
	assert.InDelta(t, 2.0, p.PerSecond(), 0.001)
	p.Phase = letters.Ended
	assert.Zero(t, p.Left())
	assert.Zero(t, letters.Progress{Summary: letters.Summary{Total: 5}, Elapsed: time.Hour}.Left(), "nothing is known")
	assert.Zero(t, letters.Progress{}.PerSecond())
}

func TestProgressAsJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(letters.Progress{Summary: letters.Summary{Total: 2, Done: 1}, Phase: letters.Waiting, Err: errors.New("amqp://user:secret@host")})
	require.NoError(t, err)
	assert.JSONEq(t, `{"total":2,"done":1,"other":0,"kept":0,"unseen":0,"redead":0,"doubtful":0,"phase":"waiting","elapsed":0}`, string(text))
}
