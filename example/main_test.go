package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMemory runs the whole demo, which needs no server.
func TestMemory(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"-schedule", "20ms 50ms 100ms 200ms"}, &stdout, &stderr), "%s%s", &stdout, &stderr)
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	assert.Regexp(t, `^published=40 processed=38 dead=2 lost=0 duplicates=0 max_lateness=\d+ms$`, lines[len(lines)-1])
	assert.Contains(t, stdout.String(), "dead-lettered, permanent: the card of order")
	assert.Contains(t, stdout.String(), "dead-lettered, exhausted: the provider answers 500")
	assert.Regexp(t, `topic +orders\n +handler +billing\n`, stdout.String())
	assert.Empty(t, stderr.String())
}

func TestHelpDoesNotPrintThePassword(t *testing.T) {
	t.Setenv("AMQP_URL", "amqp://guest:secret@localhost")
	var stdout, stderr bytes.Buffer
	assert.Zero(t, run([]string{"-h"}, &stdout, &stderr))
	assert.Contains(t, stdout.String(), "-schedule")
	assert.NotContains(t, stdout.String(), "secret")
	assert.Empty(t, stderr.String())
}

func TestErrorForABadAddressIsOneLineWithoutThePassword(t *testing.T) {
	for _, uri := range []string{
		"http://guest:secret@localhost", "guest:secret@localhost", "amqp://guest:secret@local host",
		"amqp://guest:secret@localhost:x",
		"amqp://guest:secret%@localhost", "amqp://guest:sec/ret@localhost", "amqp://guest:secret@localhost:1/",
	} {
		t.Setenv("AMQP_URL", uri)
		var stdout, stderr bytes.Buffer
		assert.Equal(t, 1, run([]string{"-backend", "rabbitmq"}, &stdout, &stderr), uri)
		assert.Regexp(t, `^example: .+\n$`, stderr.String())
		assert.NotContains(t, stderr.String(), "sec")
	}
}
