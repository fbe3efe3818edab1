package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/registry"
)

// TestEveryBackend runs the same app on each backend, and expects the same last line.
func TestEveryBackend(t *testing.T) {
	for _, e := range registry.Demos() {
		t.Run(e.Demo.Name, func(t *testing.T) {
			t.Parallel()
			var out, problems strings.Builder
			status := run([]string{"-backend", e.Demo.Name, "-schedule", "200ms 400ms"}, &out,
				&problems)
			require.Zero(t, status, problems.String())
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			assert.Regexp(t, `^published=40 processed=38 dead=2 lost=0 duplicates=0 max_lateness=\d+ms$`,
				lines[len(lines)-1])
		})
	}
}

func TestMistakesAreOneLine(t *testing.T) {
	for _, args := range [][]string{{"-backend", "kafka"}, {"-schedule", "1us"}, {"-nonsense"}} {
		var out, problems strings.Builder
		assert.Equal(t, 2, run(args, &out, &problems))
		assert.Equal(t, 1, strings.Count(problems.String(), "\n"), "%s", problems.String())
	}
}
