package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDiscard(t *testing.T) {
	t.Parallel()
	q := declare(t)
	q.timeouts(10)
	p := onTerminal(t, nil, "dead", "discard", q.work, "--reason", "0.[0-3]:")
	p.answer("for good, without a copy? [y]es, [n]o:", "n")
	r := p.wait()
	assert.Regexp(t, "Remove 4 of 10 letters in "+q.dead+" at amqp://[^@ ]+ for good, ", r.stdout)
	assert.Equal(t, 0, r.code)
	assert.Contains(t, r.stdout, "nothing is removed")
	q.await(q.dead, 10)

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
	q.await(q.dead, 4)
	p = onTerminal(t, nil, "dead", "discard", q.work)
	p.await(p.stdout, "[n]o")
	require.NoError(t, p.command.Process.Signal(os.Interrupt))
	assert.Equal(t, 130, p.wait().code)
	q.await(q.dead, 4)
	r = run(t, 1, "dead", "discard", q.work, "--yes", "--export", filepath.Join(t.TempDir(), "no", "folder"))
	assert.NotContains(t, r.stdout, "letters are in")
	assert.Equal(t, 4, redriven(t, 0, "dead", "discard", q.work, "--yes").Done)
	q.await(q.dead, 0)
}

// TestImport: the letters of a file come back, or become those of another queue.
func TestImport(t *testing.T) {
	t.Parallel()
	q, other := declare(t), declare(t)
	ids := q.timeouts(3)
	folder := t.TempDir()
	file, half := filepath.Join(folder, "letters.jsonl"), filepath.Join(folder, "half.jsonl")
	run(t, 0, "dead", "export", q.work, "-o", file)
	assert.Contains(t, run(t, 64, "dead", "export", q.work, "-o", file).stderr, "may have the only copy of other letters")
	q.take(q.dead)
	r := run(t, 0, "dead", "import", file)
	assert.Regexp(t, ` 3  put back, and confirmed( \(\d+/s\))?\n +3  letters were read from the file\n`, r.stdout)
	back, _ := q.take(q.dead)
	assert.Len(t, back, len(ids))
	run(t, 0, "dead", "import", file, "--queue", other.work)
	assert.Equal(t, 3, other.count(other.dead))

	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(half, append(content, "{\"half\""...), 0o600))
	r = run(t, 1, "dead", "import", half, "--dry-run")
	assert.Contains(t, r.stdout, "dry run that stopped early")
	assert.Contains(t, r.stderr, "line 4")
	assert.Contains(t, run(t, 1, "dead", "import", filepath.Join(folder, "none")).stderr, "no such file")
}

// runIn runs the command in a folder.
func runIn(t *testing.T, folder string, code int, args ...string) result {
	t.Helper()
	var stdout, stderr strings.Builder
	command := exec.Command(binary, args...)
	command.Dir, command.Env = folder, environment(t, nil)
	command.Stdout, command.Stderr = &stdout, &stderr
	_ = command.Run()
	require.Equal(t, code, command.ProcessState.ExitCode(), stdout.String()+stderr.String())
	return result{stdout: stdout.String(), stderr: stderr.String(), code: code}
}

// TestGoTestOfALetter: the files are in the folder, of its package, redacted, and replace no others. An import reads
// the letter.
func TestGoTestOfALetter(t *testing.T) {
	t.Parallel()
	q := declare(t)
	const hostile = "\x1b]0;owned\a`\"\n../../x"
	ids := q.fill(3, func(i int, id string) amqp091.Publishing {
		record := timeout(i)
		record.Reason = "no account of ann@example.com \x1b[2J"
		p := letter(id, record, []byte(`{"email":"ann@example.com","cents":1999}`))
		switch i {
		case 1:
			p.Headers[uuidHeader] = id + hostile
		case 2:
			p.Body = []byte("\x00ann@example.com")
		}
		p.Headers["customer"] = "ann@example.com"
		return p
	})
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "app.go"), []byte("// package wrong\npackage orders\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "a_test.go"), []byte("package orders_test\n"), 0o600))
	tool := "//go:build ignore\n\npackage main\n" // a_tool.go is before app.go
	require.NoError(t, os.WriteFile(filepath.Join(folder, "a_tool.go"), []byte(tool), 0o600))
	show := func(code int, id string, args ...string) result {
		return runIn(t, folder, code, append([]string{"dead", "show", q.work, id, "--go-test", "billing"}, args...)...)
	}

	r := show(0, ids[0], "--redact", "Email,customer,absent")
	assert.Equal(t, "billing_"+ids[0]+"_test.go and testdata/"+ids[0]+".json written; put the handler into TestBilling_"+
		strings.ReplaceAll(ids[0], "-", "_")+"\nredacted: customer, email\n", r.stdout)
	assert.Equal(t, "wmretry: warning: the letter has no field, metadata or property absent\n", r.stderr)
	code, err := os.ReadFile(filepath.Join(folder, "billing_"+ids[0]+"_test.go"))
	require.NoError(t, err)
	assert.Contains(t, string(code), "package orders\n")
	assert.Contains(t, show(1, ids[0]).stderr, "--overwrite replaces it")
	show(0, ids[0], "--redact", "email,customer", "--overwrite")
	assert.NotRegexp(t, escape, show(0, ids[1]+hostile, "--redact", "email,customer").stdout)
	assert.Contains(t, show(1, ids[2], "--redact", "email").stderr, "--drop-payload")
	show(0, ids[2], "--redact", "email,customer", "--drop-payload")
	show(4, "none")
	q.await(q.dead, 3) // all letters are still there
	files, err := filepath.Glob(filepath.Join(folder, "testdata", "*"))
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.NotContains(t, string(content), "ann@example.com")
	}

	run(t, 0, "dead", "import", filepath.Join(folder, "testdata", ids[0]+".json"))
	q.await(q.dead, 4)
	all := lines[listed](t, run(t, 0, "dead", "show", q.work, ids[0], "--json").stdout)
	require.Len(t, all, 2)
	assert.ElementsMatch(t, []string{"redacted", "ann@example.com"},
		[]string{all[0].Metadata["customer"], all[1].Metadata["customer"]})
}
