package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDiscard(t *testing.T) {
	t.Parallel()
	q := declare(t)
	q.timeouts(10)
	assert.Equal(t, summary{Total: 10, Done: 1, Other: 9}, redriven(t, 0, "dead", "discard", q.work, "--dry-run", "--reason", "0.4:"))

	p := onTerminal(t, nil, "dead", "discard", q.work, "--reason", "0.[0-3]:")
	p.answer("Remove 4 of 10 letters in "+q.dead+" for good, without a copy? [y]es, [n]o:", "n")
	r := p.wait()
	assert.Equal(t, 0, r.code)
	assert.Contains(t, r.stdout, "nothing is removed")
	assert.Equal(t, 10, q.count(q.dead))

	p = onTerminal(t, nil, "dead", "discard", q.work, "--reason", "0.[0-3]:")
	p.answer("[n]o", "y")
	assert.Equal(t, 0, p.wait().code)
	q.await(q.dead, 6)

	// What dies while the command asks is not removed.
	p = onTerminal(t, nil, "dead", "discard", q.work, "--limit", "0")
	p.await(p.stdout, "Remove 6 of 6 letters")
	q.timeouts(1)
	p.answer("[n]o", "y")
	r = p.wait()
	assert.Equal(t, 0, r.code)
	assert.Contains(t, r.stdout, "beyond the number that you confirmed: they stay")
	q.await(q.dead, 1)
	q.timeouts(5)

	file := filepath.Join(t.TempDir(), "letters.jsonl")
	p = onTerminal(t, nil, "dead", "discard", q.work, "--limit", "2", "--export", file)
	p.answer("with a copy in "+file, "y")
	assert.Equal(t, 0, p.wait().code)
	q.await(q.dead, 4)
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, 2, strings.Count(string(content), "\n"))
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	r = run(t, 64, "dead", "discard", q.work, "--yes", "--export", file)
	assert.Contains(t, r.stderr, "may have the only copy of other letters")
	assert.Equal(t, 4, q.count(q.dead))
	p = onTerminal(t, nil, "dead", "discard", q.work)
	p.await(p.stdout, "[n]o")
	require.NoError(t, p.command.Process.Signal(os.Interrupt))
	assert.Equal(t, 130, p.wait().code)
	assert.Equal(t, 4, q.count(q.dead))
	r = run(t, 1, "dead", "discard", q.work, "--yes", "--export", filepath.Join(t.TempDir(), "no", "folder"))
	assert.NotContains(t, r.stdout, "letters are in")
	assert.Equal(t, 4, redriven(t, 0, "dead", "discard", q.work, "--yes").Done)
	assert.Equal(t, 0, q.count(q.dead))
}

// TestExportAndImport: the letters of a file come back. Package deadletter tests that they are the same.
func TestExportAndImport(t *testing.T) {
	t.Parallel()
	q := declare(t)
	ids := q.timeouts(3)
	folder := t.TempDir()
	first, second := filepath.Join(folder, "first.jsonl"), filepath.Join(folder, "second.jsonl")
	r := run(t, 0, "dead", "export", q.work, "-o", first)
	assert.Contains(t, r.stdout, "3 letters of "+q.dead+" written to "+first)
	assert.Contains(t, run(t, 64, "dead", "export", q.work, "-o", first).stderr, "may have the only copy of other letters")
	run(t, 4, "dead", "export", q.work, "-o", second, "--handler", "absent")
	content, err := os.ReadFile(first)
	require.NoError(t, err)
	assert.Len(t, lines[listed](t, run(t, 0, "dead", "export", q.work, "-o", "-").stdout), 3)

	q.take(q.dead)
	assert.Equal(t, summary{Total: 3, Done: 3}, redriven(t, 0, "dead", "import", first, "--dry-run"))
	assert.Equal(t, 0, q.count(q.dead))
	r = run(t, 0, "dead", "import", first)
	assert.Regexp(t, ` 3  put back, and confirmed( \(\d+/s\))?\n +3  letters were read from the file\n`, r.stdout)
	back, _ := q.take(q.dead)
	assert.Len(t, back, len(ids))

	other := declare(t)
	run(t, 0, "dead", "import", first, "--queue", other.work)
	assert.Equal(t, 3, other.count(other.dead))
	require.NoError(t, os.WriteFile(second, append(content, "{\"half\""...), 0o600))
	assert.Contains(t, run(t, 1, "dead", "import", second).stderr, "line 4")
	assert.Contains(t, run(t, 1, "dead", "import", second, "--dry-run").stdout, "dry run that stopped early")
	assert.Contains(t, run(t, 1, "dead", "import", filepath.Join(folder, "none")).stderr, "no such file")
}
