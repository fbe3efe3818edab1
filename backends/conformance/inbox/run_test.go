package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
)

// A run that does not restart the broker does not look like one that does.
func TestRunWithoutARestart(t *testing.T) {
	for kill, restarts := range map[string]int{"": 0, "true": 1} {
		t.Setenv("BROKER_KILL", kill)
		t.Setenv("BROKER_START", "true")
		r := run{broker: &servers.Server{}}
		require.NoError(t, r.restartBroker(t.Context()))
		assert.Equal(t, restarts, r.brokerRestarts)
		assert.Equal(t, restarts == 0, strings.Contains(r.counts.String(), "NO RESTART OF THE BROKER"))
	}
}

// A broker with a name is restarted by its name.
func TestRestartByName(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "verbs")
	server, err := broker{node: "4.3=amqp://localhost/", tool: "echo >>" + file}.server()
	require.NoError(t, err)
	assert.Equal(t, "amqp://localhost/", server.URL)
	r := run{broker: server}
	require.NoError(t, r.restartBroker(t.Context()))
	assert.Equal(t, 1, r.brokerRestarts)
	verbs, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "kill 4.3\nstart 4.3\n", string(verbs))
	_, err = broker{node: "4.3"}.server()
	require.ErrorContains(t, err, "the form name=url")
	r.broker, err = broker{node: "4.3=x", tool: "false"}.server()
	require.NoError(t, err)
	require.Error(t, r.restartBroker(t.Context()))
}

// TestKills is a short form of make inbox.
func TestKills(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"rabbitmq-v2", "redis"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			const messages, kills = 200, 3
			counts, err := measure(t.Context(), backend, broker{}, messages, kills)
			t.Log(counts)
			require.NoError(t, err)
			assert.Equal(t, kills, counts.kills)
			assert.Equal(t, 1, counts.databaseRestarts)
			assert.Equal(t, counts.brokerRestarts == 0, strings.Contains(counts.String(), "NO RESTART"))
			assert.GreaterOrEqual(t, counts.duplicates, int64(messages/20/2), "of the 10 that are published twice")
			assert.Positive(t, counts.redriven)
		})
	}
}
