package redis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/redisretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestRedisThatRemovesWhatWaitsIsNamed: one server, and one node of a cluster.
func TestRedisThatRemovesWhatWaitsIsNamed(t *testing.T) {
	t.Parallel()
	single, cluster := start(t), startCluster(t, 2)
	for client, server := range map[redis.UniversalClient]*redis.Client{
		single:  single,
		cluster: newClient(t, cluster.Options().Addrs[1]),
	} {
		require.NoError(t, server.ConfigSet(t.Context(), "maxmemory", "100mb").Err())
		require.NoError(t, server.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
		logs := watermill.NewCaptureLogger()
		connection, err := redisretry.Connect(redisretry.Config{
			Client: client, Group: group, Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}},
		}, logs)
		require.NoError(t, err)
		eventually(t, func() bool { return len(logs.Captured()[watermill.ErrorLogLevel]) > 0 }, "there is no warning")
		line := logs.Captured()[watermill.ErrorLogLevel][0]
		assert.Equal(t, "Redis removes messages that wait when its memory is full: set maxmemory-policy to noeviction, "+
			"and use another server for a cache", line.Msg)
		assert.Equal(t, "allkeys-lru", fmt.Sprint(line.Fields["maxmemory_policy"]))
		assert.NoError(t, connection.Close())
	}
}
