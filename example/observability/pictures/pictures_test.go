//go:build unix

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot/plotter"
)

// TestDrawnPanelsAreOnTheBoard: the picture has panels of the board, and every variable in their queries has a value.
func TestDrawnPanelsAreOnTheBoard(t *testing.T) {
	t.Parallel()
	b, err := readBoard("../../../observability/dashboards/app.json")
	require.NoError(t, err)
	for _, title := range drawn {
		i := slices.IndexFunc(b.Panels, func(p panel) bool { return p.Title == title && len(p.Targets) > 0 })
		require.GreaterOrEqual(t, i, 0, "the board has no panel %q", title)
		for _, target := range b.Panels[i].Targets {
			assert.NotContains(t, queryOf(target.Expr), "$")
		}
	}
}

func TestQueryOf(t *testing.T) {
	t.Parallel()
	assert.Equal(t, `rate(a{job=~".*", handler="billing"}[10s])`, queryOf(`rate(a{job=~"$job", handler="${handler}"}[$__rate_interval])`))
}

func TestChartOf(t *testing.T) {
	t.Parallel()
	svg, err := chartOf([]line{{Name: "a", points: plotter.XYs{{X: 0, Y: 0.5}, {X: 10, Y: 1}}}}, "percentunit")
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(string(svg), "<svg"))
	assert.Contains(t, string(svg), "100 %")
	for unit, want := range map[string]string{"s": "500 ms", "ops": "0.5 /s", "percentunit": "50 %", "short": "0.5"} {
		assert.Equal(t, want, units{unit}.label(0.5))
	}
}

func TestWaterfall(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "spans.json")
	lines := `{"Name":"order-6","SpanContext":{"TraceID":"b","SpanID":"1"},"StartTime":"2026-01-02T03:04:05Z","EndTime":"2026-01-02T03:04:06Z"}
{"Name":"process orders","SpanContext":{"TraceID":"a","SpanID":"2"},"Parent":{"SpanID":"1"},"StartTime":"2026-01-02T03:04:06Z","EndTime":"2026-01-02T03:04:06.02Z",` +
		`"Attributes":[{"Key":"watermill.retry.outcome","Value":{"Type":"STRING","Value":"retried"}}],"Status":{"Code":"Error","Description":"<locked>"}}
{"Name":"order-7","SpanContext":{"TraceID":"a","SpanID":"1"},"StartTime":"2026-01-02T03:04:05Z","EndTime":"2026-01-02T03:04:05.005Z"}
{"Name":"half a li`
	require.NoError(t, os.WriteFile(file, []byte(lines), 0o600))
	page, err := waterfall(file)
	require.NoError(t, err)
	assert.Contains(t, page, "process orders (attempt 1)")
	assert.Contains(t, page, "20 ms, retried")
	assert.Equal(t, 2, strings.Count(page, `class="bar"`))
	assert.NotContains(t, page, "order-6")

	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = waterfall(file)
	require.ErrorContains(t, err, "no trace")
}
