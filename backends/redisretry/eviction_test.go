package redisretry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// information is a client of a server with this answer to INFO.
type information struct {
	redis.UniversalClient
	text   string
	faults []error // of the first commands
	asked  int
}

func (i *information) Info(ctx context.Context, _ ...string) *redis.StringCmd {
	answer := redis.NewStringCmd(ctx)
	answer.SetVal(i.text)
	if i.asked < len(i.faults) {
		answer.SetErr(i.faults[i.asked])
	}
	i.asked++
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
		policy, err := policyOf(t.Context(), &information{text: text})
		require.NoError(t, err)
		assert.Equal(t, warns, removesAny(policy), text)
	}
}

// serverError is an answer of the server.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

// A server that is away or reads its data is asked again, one that does not tell is not.
func TestConnectWarnsOfEvictionLate(t *testing.T) {
	t.Parallel()
	const evicts = "maxmemory:1024\r\nmaxmemory_policy:allkeys-lru\r\n"
	for name, test := range map[string]struct {
		faults       []error
		asked, warns int
	}{
		"away and reading its data": {faults: []error{
			errors.New("refused"), serverError("LOADING Redis is loading the dataset in memory"),
			serverError("ERR max number of clients reached"),
		}, asked: 4, warns: 1},
		"no right": {faults: []error{serverError("NOPERM no permissions to run the 'info' command")}, asked: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, logs := &information{text: evicts, faults: test.faults}, watermill.NewCaptureLogger()
			s := &server{client: client, logger: logs, ctx: t.Context()}
			s.watchEviction()
			assert.Equal(t, test.asked, client.asked, name)
			assert.Len(t, logs.Captured()[watermill.ErrorLogLevel], test.warns, name)
		})
	}
}
