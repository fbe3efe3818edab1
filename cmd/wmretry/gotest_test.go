package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/retry"
)

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
	record := func(i int) retry.Record {
		record := timeout(i)
		record.Reason = "no account of ann@example.com \x1b[2J"
		return record
	}
	ids := q.fill(5, func(i int, id string) amqp091.Publishing {
		p := letter(id, record(i), []byte(`{"email":"ann@example.com","cents":1999}`))
		p.Headers["customer"], p.Headers["count"], p.CorrelationId = "ann@example.com", int32(3), "c-1"
		switch i {
		case 1:
			p = letter(id+hostile, record(i), []byte(`{"email":"ann@example.com"}`))
		case 2:
			p.Body = []byte("\x00ann@example.com")
		case 3:
			p.Body = []byte(`{"email":"ann@example.com","data":"` + strings.Repeat("x", 5<<20) + `"}`)
		case 4: // died again
			again := record(i)
			again.LastFailedAt = again.LastFailedAt.Add(time.Hour)
			p = letter("twice", again, []byte(`{"cents":2}`))
		}
		return p
	})
	q.fill(1, func(i int, _ string) amqp091.Publishing { return letter("twice", record(i), []byte(`{"cents":1}`)) })
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "app.go"), []byte("// package wrong\npackage orders\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "a_test.go"), []byte("package orders_test\n"), 0o600))
	tool := "//go:build ignore\n\npackage main\n" // a_tool.go is before app.go
	require.NoError(t, os.WriteFile(filepath.Join(folder, "a_tool.go"), []byte(tool), 0o600))
	rules := filepath.Join(folder, "rules")
	require.NoError(t, os.WriteFile(rules, []byte("# personal data\nEmail # of a customer\n\n"), 0o600))
	show := func(code int, id string, args ...string) result {
		return runIn(t, folder, code, append([]string{"dead", "show", q.work, id, "--go-test", "billing"}, args...)...)
	}
	written := func() (all string) {
		files, err := filepath.Glob(filepath.Join(folder, "testdata", "*"))
		require.NoError(t, err)
		for _, file := range files {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			all += string(content)
		}
		return all
	}

	r := show(0, ids[0], "--redact-rules", rules, "--redact", "customer,absent")
	assert.Equal(t, "billing_"+ids[0]+"_test.go and testdata/"+ids[0]+".json written; put the handler into TestBilling_"+
		strings.ReplaceAll(ids[0], "-", "_")+"\nredacted: customer, email\n", r.stdout)
	assert.Equal(t, "wmretry: warning: the letter has no field, metadata or property absent\n", r.stderr)
	code, err := os.ReadFile(filepath.Join(folder, "billing_"+ids[0]+"_test.go"))
	require.NoError(t, err)
	assert.Contains(t, string(code), "package orders\n")
	assert.Contains(t, show(1, ids[0]).stderr, "--overwrite replaces it")
	assert.NotContains(t, written(), "ann@example.com")
	show(0, ids[0], "--redact", "email,customer", "--overwrite")
	assert.NotContains(t, written(), "ann@example.com")

	r = show(0, ids[1]+hostile, "--redact", "email")
	assert.NotRegexp(t, escape, r.stdout+r.stderr)
	assert.Contains(t, show(1, ids[2], "--redact", "email").stderr, "--drop-payload")
	show(0, ids[2], "--redact", "email,customer", "--drop-payload")
	show(0, ids[3], "--redact", "email,customer")
	assert.NotContains(t, written(), "ann@example.com")
	r = show(0, "twice", "--json")
	assert.Contains(t, r.stdout, `"letters":2`)
	assert.Contains(t, written(), `{\"cents\":2}`)
	assert.NotContains(t, written(), `{\"cents\":1}`)
	show(4, "none")
	assert.Equal(t, 6, q.count(q.dead), "all letters are still there")

	file := filepath.Join(folder, "testdata", ids[0]+".json")
	run(t, 0, "dead", "import", file)
	q.await(q.dead, 7)
	all := lines[listed](t, run(t, 0, "dead", "show", q.work, ids[0], "--json").stdout)
	require.Len(t, all, 2)
	imported := all[1]
	if imported.Metadata["customer"] != "redacted" {
		imported = all[0]
	}
	assert.Equal(t, "redacted", imported.Metadata["customer"])
	assert.Equal(t, "int32", imported.HeaderTypes["count"])
	want := record(0)
	want.Reason = "no account of redacted \x1b[2J"
	assert.Equal(t, want.Failures, imported.Record.Failures)
	assert.Equal(t, want.Reason, imported.Record.Reason)
	assert.Equal(t, want.Handler, imported.Record.Handler)
}
