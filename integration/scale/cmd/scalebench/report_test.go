package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReportReplacesTheFiguresOfAPage(t *testing.T) {
	t.Parallel()
	r := report{versions: []string{"4.0.5", "4.3.6"}}
	for _, version := range r.versions {
		s := &server{version: version}
		r.claimAtMost(s, "late", "ms", 1234.5, 50)
		r.claimAtLeast(s, "sooner", "", 47.25, 20)
		r.row("worker", "How long", []string{"RabbitMQ", "took"}, version, "2 s")
	}
	require.Equal(t, "claim late@4.0 measured=1234ms target=50ms missed", r.claims[0].String())
	require.Equal(t, "claim sooner@4.3 measured=47.2 target=20 ok", r.claims[3].String())

	page := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(page, []byte("# Page\n"+figuresBegin+"old\n"+figuresEnd+"\nrest\n"), 0o600))
	require.NoError(t, r.writeInto(page))
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, "# Page\n"+figuresBegin+"\n"+r.heading()+`.

| claim | target | RabbitMQ 4.0 | RabbitMQ 4.3 |
|---|---|---|---|
| `+"`late`"+` | at most 50 ms | 1234 ms: missed | 1234 ms: missed |
| `+"`sooner`"+` | at least 20 | 47.2 | 47.2 |

![How long](charts/scale-worker.svg)

`+figuresEnd+"\nrest\n", string(text))

	require.NoError(t, os.WriteFile(page, []byte("# Page\n"), 0o600))
	require.ErrorContains(t, r.writeInto(page), "has no lines")
}
