package cli

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestUIRefusesOtherMachines: the page has no login.
func TestUIRefusesOtherMachines(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"0.0.0.0:0": "--allow-remote", ":8080": "--allow-remote", "10.0.0.1:8080": "--allow-remote", "example.com:8080": "--allow-remote", "8080": "an address and a port",
	} {
		var stderr bytes.Buffer
		e := &env{stdout: &bytes.Buffer{}, stderr: &stderr}
		assert.Equal(t, codeUsage, run(context.Background(), e, []string{"ui", "--listen", listen}), listen)
		assert.Contains(t, stderr.String(), want, listen)
	}
}

func TestUILoopback(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]bool{
		"127.0.0.1:8080": true, "127.8.8.8:0": true, "[::1]:8080": true, "localhost:8080": true, "[::]:8080": false, "localhost.example.com:80": false,
	} {
		got, err := isLoopback(listen)
		require.NoError(t, err)
		assert.Equal(t, want, got, listen)
	}
}

// TestErrorsAreEscaped: an error can have the text of a broker, and of an argument.
func TestErrorsAreEscaped(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"\x1b[2J"}, {"ui", "--\x1b[2J"}, {"ui", "--listen", "\x1b[2J"}, {"topology", "apply", "--file", "\x1b[2J"}} {
		var stderr bytes.Buffer
		e := &env{stdout: &bytes.Buffer{}, stderr: &stderr}
		assert.NotZero(t, run(context.Background(), e, args))
		assert.Contains(t, stderr.String(), `\x1b[2J`, args)
		assert.NotContains(t, stderr.String(), "\x1b", args)
	}
	var stderr bytes.Buffer
	e := &env{stderr: &stderr, flags: flags{verbose: true}, password: "correct-horse"}
	e.logger().Error("lost", errors.New("\u009b2J\u202e"), watermill.LogFields{"queue": "\x1b[2J", "uri": "amqp://shop:correct-horse@host/"})
	assert.NotRegexp(t, "[\x1b\u009b\u202e]|correct-horse", stderr.String())
	assert.Contains(t, stderr.String(), "lost")
}

// TestExportsAreEscaped: on a terminal JSON has nothing that changes it, and has the same values.
func TestExportsAreEscaped(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	line := `{"text":"` + "\u009b2J\u202e\x7fé" + `"}` + "\n"
	n, err := jsonLines{&stdout}.Write([]byte(line))
	require.NoError(t, err)
	assert.Equal(t, len(line), n)
	assert.Equal(t, `{"text":"\u009b2J\u202e\u007fé"}`+"\n", stdout.String())
	assert.JSONEq(t, line, stdout.String())
	stdout.Reset()
	e := &env{stdout: &stdout, stderr: &bytes.Buffer{}}
	require.Equal(t, codeDone, run(context.Background(), e, []string{"topology", "export", "--queue", "a\u009b\u202e", "--schedule", "1s"}))
	assert.NotRegexp(t, "[\u009b\u202e]", stdout.String())
	assert.Contains(t, stdout.String(), `"a\u009b\u202e.dead"`)
}

// TestCompletable: a queue of another user must not reach the terminal, or run anything, when TAB lists the names.
func TestCompletable(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"orders": true, "my orders": true, "ørders:1": true, "$(id)": true, // bash gets names that are quoted
		"a\x1b[2J": false, "a\nb": false, "a\tb": false, "a\u202e": false, "_activeHelp_ a": false,
	} {
		assert.Equal(t, want, completable(name), "%q", name)
	}
}
