package redisretry

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// information is a client of a server with this answer to INFO.
type information struct {
	redis.UniversalClient
	text string
}

func (i information) Info(ctx context.Context, _ ...string) *redis.StringCmd {
	answer := redis.NewStringCmd(ctx)
	answer.SetVal(i.text)
	return answer
}

// A server without a limit of its memory removes nothing, and volatile-* nothing without a time to live.
func TestOfWhichPoliciesConnectWarns(t *testing.T) {
	t.Parallel()
	for text, warns := range map[string]bool{
		"# Memory\r\nmaxmemory:1024\r\nmaxmemory_policy:allkeys-lfu\r\n":  true,
		"# Memory\r\nmaxmemory:1024\r\nmaxmemory_policy:allkeys-lrm\r\n":  true,
		"# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n":     false,
		"# Memory\r\nmaxmemory:1024\r\nmaxmemory_policy:noeviction\r\n":   false,
		"# Memory\r\nmaxmemory:1024\r\nmaxmemory_policy:volatile-lru\r\n": false,
		"": false,
	} {
		policy, err := policyOf(t.Context(), information{text: text})
		require.NoError(t, err)
		assert.Equal(t, warns, removesAny(policy), text)
	}
}
