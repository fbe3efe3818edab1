// Package redis_test tests package redisretry on private servers.
package redis_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/backends/redisretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	group       = "billing"
	orders      = "orders"
	returnTopic = "retry.return.billing.orders"
	deadTopic   = "retry.dead.billing.orders"

	// soon is longer than any step of a test takes on a busy machine.
	soon = 90 * time.Second
)

var errDown = errors.New("the service is down")

// start returns a client of a private server.
func start(t *testing.T) *redis.Client {
	t.Helper()
	server, err := servers.Redis(t.Context())
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	return newClient(t, server.URL)
}

func newClient(t *testing.T, address string) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: address})
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	return client
}

// connect connects an app whose messages wait for the delays.
func connect(
	t *testing.T, client redis.UniversalClient, lease time.Duration, delays ...time.Duration,
) retry.Connection {
	t.Helper()
	connection, err := redisretry.Connect(redisretry.Config{
		Client: client, Group: group, Policy: retry.Policy{Schedule: backoff.Schedule(delays)}, Lease: lease,
	}, logger(t))
	require.NoError(t, err)
	return connection
}

func logger(t *testing.T) watermill.LoggerAdapter {
	if testing.Verbose() {
		return watermill.NewStdLogger(false, false)
	}
	return watermill.NopLogger{}
}

// run runs a handler of the topic orders, until the function that it returns is called or the test ends.
func run(
	t *testing.T, connection retry.Connection, name string, handler message.NoPublishHandlerFunc,
	options ...retry.Options,
) (stop func()) {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 100 * time.Millisecond}, logger(t))
	require.NoError(t, err)
	connection.AddConsumerHandler(router, name, orders, handler, options...)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
	select {
	case <-router.Running():
	case err := <-ended:
		require.NoError(t, err, "the router has ended")
	}
	stop = sync.OnceFunc(func() {
		_ = router.Close() // a handler may be in flight
		<-ended
		assert.NoError(t, connection.Close())
	})
	t.Cleanup(stop)
	return stop
}

// publish publishes messages with these UUIDs to the topic orders.
func publish(t *testing.T, publisher message.Publisher, ids ...string) {
	t.Helper()
	all := make([]*message.Message, len(ids))
	for i, id := range ids {
		all[i] = message.NewMessage(id, []byte("payload of "+id))
	}
	require.NoError(t, publisher.Publish(orders, all...))
}

// ledger counts the calls of a handler by message.
type ledger struct {
	mu    sync.Mutex
	calls map[string]int
}

// call counts a call, and returns which one it is.
func (l *ledger) call(msg *message.Message) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls == nil {
		l.calls = map[string]int{}
	}
	l.calls[msg.UUID]++
	return l.calls[msg.UUID]
}

func (l *ledger) of(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[id]
}

// missing returns how many of the messages have fewer calls.
func (l *ledger) missing(calls int, ids ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if l.calls[id] < calls {
			n++
		}
	}
	return n
}

func eventually(t *testing.T, condition func() bool, message string) {
	t.Helper()
	require.Eventually(t, condition, soon, 5*time.Millisecond, message)
}

// left returns the keys of the return topics, without the set of those that are subscribed.
func left(t *testing.T, client redis.UniversalClient) (keys []string) {
	t.Helper()
	for _, pattern := range []string{"retry.return.*", "retry.returns:*:index", "retry.returns:*:given-back"} {
		found, err := client.Keys(context.Background(), pattern).Result()
		require.NoError(t, err)
		keys = append(keys, found...)
	}
	return keys
}

// inFlight returns how many entries of the topic are with consumers.
func inFlight(t *testing.T, client redis.UniversalClient) int64 {
	t.Helper()
	pending, err := client.XPending(context.Background(), orders, group).Result()
	require.NoError(t, err)
	return pending.Count
}

// subscribedKey returns the key of the set that has the return topic.
func subscribedKey(t *testing.T, client redis.UniversalClient) string {
	t.Helper()
	keys, err := client.Keys(context.Background(), "retry.returns:*:subscribed").Result()
	require.NoError(t, err)
	require.Len(t, keys, 1)
	return keys[0]
}
