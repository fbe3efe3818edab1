package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
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

func TestParse(t *testing.T) {
	t.Setenv("AMQP_URL", "amqp://from-env")
	var out bytes.Buffer
	opts, err := parse(nil, &out)
	require.NoError(t, err)
	assert.Equal(t, options{
		backend: backendMemory, uri: "amqp://from-env", messages: 40,
		schedule: backoff.Schedule{500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second},
	}, opts)

	opts, err = parse([]string{"-amqp", "amqp://flag", "-messages", "3", "-schedule", "1s*2", "-v"}, &out)
	require.NoError(t, err)
	assert.Equal(t, options{
		backend: backendRabbitMQ, uri: "amqp://flag", messages: 3, schedule: backoff.Constant(time.Second, 2), verbose: true,
	}, opts)

	opts, err = parse([]string{"-backend", "rabbitmq"}, &out)
	require.NoError(t, err)
	assert.Equal(t, backendRabbitMQ, opts.backend)
	assert.Equal(t, "amqp://from-env", opts.uri)
	assert.Empty(t, out.String())
}

func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"-messages", "0"},
		{"-messages", "-1"},
		{"-messages", "10001"},
		{"-messages", "many"},
		{"-schedule", ""},
		{"-schedule", "1s 5"},
		{"-nothing"},
		{"-backend", "kafka"},
		{"-backend", "memory", "-amqp", "amqp://guest:secret@localhost"},
		{"amqp://guest:secret@localhost"},
	} {
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			assert.Equal(t, exitUsage, run(args, &stdout, &stderr))
			assert.Empty(t, stdout.String())
			assert.Regexp(t, `^example: .+\n$`, stderr.String())
			assert.NotContains(t, stderr.String(), "sec")
		})
	}
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
		"http://guest:secret@localhost", "guest:secret@localhost", "amqp://guest:secret@local host", "amqp://guest:secret@localhost:x",
		"amqp://guest:secret%@localhost", "amqp://guest:sec/ret@localhost", "amqp://guest:secret@localhost:1/",
	} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, exitFailed, run([]string{"-amqp", uri}, &stdout, &stderr), uri)
		assert.Regexp(t, `^example: .+\n$`, stderr.String())
		assert.NotContains(t, stderr.String(), "sec")
	}
}
