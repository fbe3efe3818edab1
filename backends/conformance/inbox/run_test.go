package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestKills is a short form of make inbox.
func TestKills(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"rabbitmq", "redis"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			const messages, kills = 200, 3
			counts, err := measure(t.Context(), backend, node{}, messages, kills)
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
