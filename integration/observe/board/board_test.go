// Package board_test evaluates every query of the boards and alerts in observability, and of the documentation, with a
// real Prometheus: see `make test-observe`.
package board_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/observe"
)

func TestPanelsAreDescribed(t *testing.T) {
	t.Parallel()
	for _, file := range boardFiles(t) {
		panels, ids := 0, map[int]bool{}
		for _, p := range readBoard(t, file).Panels {
			require.False(t, ids[p.ID], "%s: the id of %s is that of another panel", file, p.Title)
			ids[p.ID] = true
			if p.Type == "row" {
				continue
			}
			panels++
			require.NotEmpty(t, p.Targets, p.Title)
			require.True(t, strings.HasSuffix(p.Description, "."), "the description of %s is a sentence: %q", p.Title, p.Description)
			require.NotContains(t, p.Description[:len(p.Description)-1], ". ", "the description of %s is one sentence", p.Title)
		}
		require.NotZero(t, panels)
	}
}

// TestDurationsShowExemplars: a point of these panels leads to its trace.
func TestDurationsShowExemplars(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, p := range readBoard(t, filepath.Join(boardFolder, "app.json")).Panels {
		for _, target := range p.Targets {
			shown[p.Title] = shown[p.Title] || target.Exemplar
		}
	}
	for _, title := range []string{"Duration of the handler", "Lateness of retries", "Age at success and at death", "Time to publish"} {
		require.True(t, shown[title], title)
	}
	require.False(t, shown["Outcomes"], "the exemplars of a counter have no value of the panel")
}

// TestTheBoardHasEveryMetric: what package observe measures can be seen.
func TestTheBoardHasEveryMetric(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(boardFolder, "app.json"))
	require.NoError(t, err)
	for _, m := range observe.Metrics() {
		require.True(t, bytes.Contains(text, []byte(m.Prometheus)), "no panel has the metric %s", m.Prometheus)
	}
}
