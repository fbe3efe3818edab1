package conformance

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/backends/redisretry"
	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// startRedis returns a client of a private server.
func startRedis(t *testing.T) *redis.Client {
	t.Helper()
	t.Parallel()
	server, err := servers.Redis(t.Context())
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	return redisClient(t, &redis.Options{Addr: server.URL})
}

func redisClient(t *testing.T, options *redis.Options) *redis.Client {
	t.Helper()
	client := redis.NewClient(options)
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	return client
}

func redisConfig(client redis.UniversalClient, delays ...time.Duration) redisretry.Config {
	return redisretry.Config{Client: client, Group: "billing", Policy: retry.Policy{Schedule: delays}}
}

// onRedis connects an app.
func onRedis(t *testing.T, client redis.UniversalClient, delays ...time.Duration) *app {
	t.Helper()
	return connect(t, func(logger watermill.LoggerAdapter) (retry.Connection, error) {
		return redisretry.Connect(redisConfig(client, delays...), logger)
	})
}

// redisHas returns how many messages of the retries and of the topic are not settled.
func redisHas(t *testing.T, client redis.UniversalClient) (n int64) {
	t.Helper()
	for _, pattern := range []string{"retry.return.*", "retry.returns:*:index", "retry.returns:*:given-back"} {
		keys, err := client.Keys(noContext, pattern).Result()
		require.NoError(t, err)
		n += int64(len(keys))
	}
	if pending, err := client.XPending(noContext, orders, "billing").Result(); err == nil {
		n += pending.Count
	}
	return n
}

func awaitNothingOnRedis(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	wait.Until(t, func() bool { return redisHas(t, client) == 0 }, "nothing is left")
}

// TestRedisCloseWhereTheNetworkDropsPackets: Close ends, while messages are in flight and a command waits for its answer.
// What was in flight comes again elsewhere.
func TestRedisCloseWhereTheNetworkDropsPackets(t *testing.T) {
	const count = 20
	server := startRedis(t)
	var drops atomic.Bool
	var dropped atomic.Int64
	sends := tapped(func(net.Conn, []byte) bool {
		if drops.Load() {
			dropped.Add(1)
		}
		return !drops.Load()
	})
	options := *server.Options()
	options.Dialer = func(_ context.Context, network, address string) (net.Conn, error) {
		return sends.Dial(network, address)
	}
	options.ReadTimeout, options.ContextTimeoutEnabled = -1, true // only the deadlines of the package
	seen, release := newLedger(), make(chan struct{})
	bill := func(msg *message.Message) error {
		if err := seen.failing(1)(msg); len(seen.of(msg.UUID)) > 1 {
			return err
		}
		<-release
		return errDown
	}
	config := redisConfig(redisClient(t, &options), 100*time.Millisecond)
	config.Lease = time.Second
	connection, err := redisretry.Connect(config, nil)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 100 * time.Millisecond}, watermill.NopLogger{})
	require.NoError(t, err)
	connection.AddConsumerHandler(router, "bill", orders, bill)
	_, err = process.Serve(noContext, router)
	require.NoError(t, err)
	other := connect(t, func(logger watermill.LoggerAdapter) (retry.Connection, error) {
		config.Client = server
		return redisretry.Connect(config, logger)
	})
	other.publish(ids(count)...)
	seen.await(t, 16, 0)
	drops.Store(true)
	wait.Until(t, func() bool { return dropped.Load() >= 4 }, "commands wait")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = router.Close()
		_ = connection.Close() // the consumer cannot be deleted
	}()
	wait.For(t, ended, "Close has ended")
	close(release)
	other.bills(bill)
	seen.await(t, count, 1)
}

// TestRedisForeignMessages: what cannot be read is a dead letter, on the topic and on the return topic, and the messages
// behind it are handled.
func TestRedisForeignMessages(t *testing.T) {
	client := startRedis(t)
	seen := newLedger()
	app := onRedis(t, client, 300*time.Millisecond).bills(seen.failing(1), oneInFlight)
	require.NoError(t, client.XAdd(noContext, &redis.XAddArgs{
		Stream: orders, Values: []string{"payload", "of another program", "type", "csv"},
	}).Err())
	app.publish("1")
	var due []string
	wait.Until(t, func() bool {
		due = client.Keys(noContext, "retry.return.*:due").Val()
		return len(due) == 1
	}, "a message waits")
	messages := strings.TrimSuffix(due[0], "due") + "messages"
	require.NoError(t, client.HSet(noContext, messages, "strange", "bytes of another program").Err())
	strange, empty := redis.Z{Score: 1, Member: "strange"}, redis.Z{Score: 2, Member: "empty"}
	require.NoError(t, client.ZAdd(noContext, due[0], strange, empty).Err())
	app.publish("2")
	seen.await(t, 2, 1)
	awaitNothingOnRedis(t, client)
	assert.EqualValues(t, 3, client.XLen(noContext, orders).Val(), "the app's own entries stay")

	entries, err := client.XRange(noContext, "retry.dead.unknown", "-", "+").Result()
	require.NoError(t, err)
	require.Len(t, entries, 2)
	payloads := map[string]message.Metadata{}
	for _, entry := range entries {
		letter, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(entry.Values)
		require.NoError(t, err)
		record, _ := retry.ReadRecord(letter.Metadata)
		assert.Equal(t, relay.DeadReasonForeign, record.DeadReason)
		payloads[string(letter.Payload)] = letter.Metadata
	}
	require.Contains(t, payloads, "bytes of another program")
	assert.Equal(t, "csv", payloads["of another program"]["type"])
}

// TestRedisServerThatIsFull takes no new message over maxmemory. What waits there comes back, and is deleted.
func TestRedisServerThatIsFull(t *testing.T) {
	const count = 50
	client := startRedis(t)
	seen := newLedger()
	app, stored := onRedis(t, client, 3*time.Second), &copies{}
	app.Observe(stored)
	app.bills(seen.failing(1)).publish(ids(count)...)
	waiting := func() (n int64) {
		for _, key := range client.Keys(noContext, "retry.return.*:due").Val() {
			n += client.ZCard(noContext, key).Val()
		}
		return n
	}
	wait.Until(t, func() bool { return stored.Load() >= count }, "all have failed")
	require.NoError(t, client.ConfigSet(noContext, "maxmemory", "1").Err())
	require.ErrorContains(t, client.Set(noContext, "new", "value", 0).Err(), "OOM")
	seen.await(t, count, 1)
	wait.Until(t, func() bool { return waiting() == 0 }, "nothing is left")
}

// TestRedisThatRemovesWhatWaitsIsNamed: one server, and one node of a cluster.
func TestRedisThatRemovesWhatWaitsIsNamed(t *testing.T) {
	single, cluster := startRedis(t), startRedisCluster(t, 2)
	for client, server := range map[redis.UniversalClient]*redis.Client{
		single:  single,
		cluster: redisClient(t, &redis.Options{Addr: cluster.Options().Addrs[1]}),
	} {
		require.NoError(t, server.ConfigSet(noContext, "maxmemory", "100mb").Err())
		require.NoError(t, server.ConfigSet(noContext, "maxmemory-policy", "allkeys-lru").Err())
		app := onRedis(t, client, time.Second)
		wait.Until(t, func() bool { return len(app.logged(watermill.ErrorLogLevel, "")) > 0 }, "there is a warning")
		line := app.logged(watermill.ErrorLogLevel, "")[0]
		assert.Equal(t, "Redis removes messages that wait when its memory is full: set maxmemory-policy to noeviction, "+
			"and use another server for a cache", line.Msg)
		assert.Equal(t, "allkeys-lru", fmt.Sprint(line.Fields["maxmemory_policy"]))
	}
}

// TestRedisLetterWithoutAHandler: a letter of a handler that is nowhere stays.
func TestRedisLetterWithoutAHandler(t *testing.T) {
	client := startRedis(t)
	store, err := redisretry.Letters(redisretry.Config{Client: client}, nil)
	require.NoError(t, err)
	defer func() { assert.NoError(t, store.Close()) }()
	_, err = store.Redrive(noContext, deadOrders, letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrNoQueue)
	onRedis(t, client, 50*time.Millisecond).bills(func(*message.Message) error { return errDown }).publish("1")
	wait.Until(t, func() bool { return client.XLen(noContext, deadOrders).Val() == 1 }, "there is a letter")
	subscribed := client.Keys(noContext, "retry.returns:*:subscribed").Val()
	require.Len(t, subscribed, 1)
	require.NoError(t, client.Del(noContext, subscribed...).Err())
	_, err = store.Redrive(noContext, deadOrders, letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrNoTarget)
	assert.EqualValues(t, 1, client.XLen(noContext, deadOrders).Val())
}

// TestRedisLeaseThatHasEnded: the message of a process that is gone waits for another one, and is not in flight.
func TestRedisLeaseThatHasEnded(t *testing.T) {
	client := startRedis(t)
	app := onRedis(t, client, time.Hour).bills(func(*message.Message) error { return errDown })
	app.publish("1", "2")
	due := ""
	wait.Until(t, func() bool {
		keys := client.Keys(noContext, "retry.return.*:due").Val()
		due = strings.Join(keys, "")
		return len(keys) == 1 && client.ZCard(noContext, due).Val() == 2
	}, "both wait")
	app.stop()
	ids := client.ZRange(noContext, due, 0, -1).Val()
	now := client.Time(noContext).Val()
	lease := func(id string, ends time.Time) {
		require.NoError(t, client.ZAdd(noContext, due, redis.Z{Score: float64(ends.UnixMilli()), Member: id}).Err())
		require.NoError(t, client.HSet(noContext, strings.TrimSuffix(due, "due")+"owners", id, "token").Err())
	}
	store, err := redisretry.Letters(redisretry.Config{Client: client}, nil)
	require.NoError(t, err)
	defer func() { assert.NoError(t, store.Close()) }()
	look := func() []int {
		all, err := operate.Of(store).Waiting(noContext)
		require.NoError(t, err)
		require.Len(t, all, 1)
		return []int{all[0].Retries, all[0].InFlight, all[0].Due}
	}
	assert.Equal(t, []int{2, 0, 0}, look())
	lease(ids[0], now.Add(time.Hour))
	assert.Equal(t, []int{1, 1, 0}, look())
	lease(ids[1], now.Add(-time.Second))
	assert.Equal(t, []int{1, 1, 1}, look())
}

// permissions are those of the package's documentation.
var permissions = []string{
	"on", ">secret", "~orders", "~idle", "~retry.*", "+@stream", "+@sortedset", "+@hash", "+@set", "+eval", "+evalsha", "+time",
	"+get", "+set", "+del", "+pexpire",
}

// TestRedisClients: a message of a topic whose handler was busy comes before a command for another topic ends, which waits
// for a second: also where the client cannot end a command, or is polled. Nothing is left.
func TestRedisClients(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(admin *redis.Client) (redis.UniversalClient, []string){
		"a client": func(admin *redis.Client) (redis.UniversalClient, []string) {
			return redis.NewClient(&redis.Options{Addr: admin.Options().Addr}), nil
		},
		"a Ring": func(admin *redis.Client) (redis.UniversalClient, []string) {
			return redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": admin.Options().Addr}}), nil
		},
		"permissions": func(admin *redis.Client) (redis.UniversalClient, []string) {
			return redis.NewClient(&redis.Options{Addr: admin.Options().Addr, Username: "app", Password: "secret"}),
				append([]string{"+client|id", "+client|unblock"}, permissions...)
		},
		"fewer permissions": func(admin *redis.Client) (redis.UniversalClient, []string) {
			return redis.NewClient(&redis.Options{Addr: admin.Options().Addr, Username: "app", Password: "secret"}), permissions
		},
		"two connections": func(admin *redis.Client) (redis.UniversalClient, []string) {
			return redis.NewClient(&redis.Options{Addr: admin.Options().Addr, PoolSize: 2}), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			admin := startRedis(t)
			client, rules := open(admin)
			t.Cleanup(func() { assert.NoError(t, client.Close()) })
			if rules != nil {
				require.NoError(t, admin.ACLSetUser(noContext, "app", rules...).Err())
			}
			const busy = 20 * time.Millisecond
			seen := newLedger()
			got := make(chan struct{}, 100)
			app := onRedis(t, client, 50*time.Millisecond).handle("idle", "idle", nothing).bills(func(msg *message.Message) error {
				if err := seen.failing(1)(msg); err != nil {
					time.Sleep(busy) // meanwhile a command waits for the other topic
					return err
				}
				got <- struct{}{}
				return nil
			}, oneInFlight)
			inTime := 0
			for _, id := range ids(9) {
				time.Sleep(2 * busy)
				ctx, cancel := context.WithCancel(t.Context())
				second := make(chan struct{})
				waits := redisClient(t, admin.Options())
				go func() {
					defer close(second)
					_ = waits.XRead(ctx, &redis.XReadArgs{Streams: []string{"nothing", "$"}, Block: time.Second}).Err()
				}()
				app.publish(id)
				select {
				case <-got:
					inTime++
				case <-second:
					wait.For(t, got, "the retry comes")
				}
				cancel()
			}
			t.Logf("%d of 9 came before a command that waits for a second has ended", inTime)
			assert.Greater(t, inTime, 4)
			awaitNothingOnRedis(t, admin)
			app.stop()
			consumers, err := admin.XInfoConsumers(noContext, orders, "billing").Result()
			require.NoError(t, err)
			assert.Empty(t, consumers)
		})
	}
}
