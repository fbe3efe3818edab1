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
	rules := filepath.Join(folder, "rules")
	require.NoError(t, os.WriteFile(rules, []byte("# personal data\nEmail # of a customer\n\n"), 0o600))
	show := func(code int, id string, args ...string) result {
		return runIn(t, folder, code, append([]string{"dead", "show", q.work, id, "--go-test", "billing"}, args...)...)
	}

	r := show(0, ids[0], "--redact-rules", rules, "--redact", "customer,absent")
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
	assert.Equal(t, 3, q.count(q.dead), "all letters are still there")
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
