package observe_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/observe"
)

var update = flag.Bool("update", false, "write the list of metrics into docs/observability.md")

const (
	page       = "../docs/observability.md"
	tableBegin = "<!-- metrics -->\n"
	tableEnd   = "<!-- end of metrics -->\n"
)

// TestDocsHaveTheMetrics: go test -run TestDocsHaveTheMetrics -update writes the list.
func TestDocsHaveTheMetrics(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), tableBegin)
	require.True(t, found, "%s has no line %q", page, tableBegin)
	table, after, found := strings.Cut(rest, tableEnd)
	require.True(t, found, "%s has no line %q", page, tableEnd)
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(before+tableBegin+metricsTable()+tableEnd+after), 0o644))
		return
	}
	assert.Equal(t, metricsTable(), table, "the list of %s is not that of Metrics: run this test with -update", page)
}

func metricsTable() string {
	var table strings.Builder
	for _, m := range observe.Metrics() {
		labels := ""
		if len(m.Labels) > 0 {
			labels = "{" + strings.Join(m.Labels, ", ") + "}"
		}
		_, _ = fmt.Fprintf(&table, "- `%s%s`\n", m.Prometheus, labels)
	}
	return table.String()
}
