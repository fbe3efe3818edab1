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
	for fault, wrong := range map[string][]letters.Redrive{
		"Redrive.Rate is":      {{Rate: math.NaN()}, {Rate: math.Inf(1)}, {Rate: math.Inf(-1)}},
		"Redrive.MaxRedead is": {{MaxRedead: math.NaN()}, {MaxRedead: math.Inf(1)}, {MaxRedead: -0.1}},
		"Redrive.CanaryWait is 1s: it needs Redrive.Canary": {{CanaryWait: time.Second}},
	} {
		for _, redrive := range wrong {
			require.ErrorContains(t, redrive.Validate(), fault)
		}
	}
}

func TestDiscardReportsAllFaults(t *testing.T) {
	t.Parallel()
	require.NoError(t, letters.Discard{}.Validate())
	err := letters.Discard{Limit: -1, Filter: letters.Filter{NewerThan: -1}}.Validate()
	require.ErrorContains(t, err, "Discard.Limit is -1")
	require.ErrorContains(t, err, "Filter.NewerThan is -1ns")
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
