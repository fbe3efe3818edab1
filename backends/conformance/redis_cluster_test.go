package conformance

import (
	"context"
	"fmt"
	"hash/fnv"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	program "github.com/tieredretry/watermill-retry/tools/child"
	"github.com/tieredretry/watermill-retry/tools/server"
)

// startRedisCluster returns a client of a Redis Cluster with several nodes, each with a part of the slots.
func startRedisCluster(t *testing.T, nodes int) *redis.ClusterClient {
	t.Helper()
	ctx := t.Context()
	var addresses []string
	var clients []*redis.Client
	for range nodes {
		started, err := startRedisNode(ctx)
		require.NoError(t, err)
		t.Cleanup(started.Stop)
		addresses = append(addresses, started.URL)
		clients = append(clients, redisClient(t, &redis.Options{Addr: started.URL}))
	}
	const slots = 16384
	for i, client := range clients {
		require.NoError(t, client.ClusterAddSlotsRange(ctx, i*slots/nodes, (i+1)*slots/nodes-1).Err())
		host, port, err := net.SplitHostPort(addresses[0])
		require.NoError(t, err)
		require.NoError(t, client.Do(ctx, "cluster", "meet", host, port, busOf(port)).Err())
	}
	for _, client := range clients {
		wait.Until(t, func() bool { return strings.Contains(client.ClusterInfo(ctx).Val(), "cluster_state:ok") },
			"the cluster is whole")
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses})
	t.Cleanup(func() { assert.NoError(t, cluster.Close()) })
	return cluster
}

// busOf returns the port on which a node with this port talks to the others.
func busOf(port string) string {
	number, _ := strconv.Atoi(port)
	if number > 50000 {
		return strconv.Itoa(number - 10000)
	}
	return strconv.Itoa(number + 10000)
}

func startRedisNode(ctx context.Context) (*server.Server, error) {
	path, err := server.Program(ctx, "redis-server", "redis-server", []string{"redis-server"})
	if err != nil {
		return nil, err
	}
	return server.Start(ctx, server.Plan{
		Name: "redis-server", Ending: syscall.SIGKILL,
		Command: func(folder string, port int) (string, []string, error) {
			number := strconv.Itoa(port)
			return net.JoinHostPort("127.0.0.1", number), []string{
				path, "--port", number, "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--cluster-enabled", "yes",
				"--cluster-port", busOf(number),
			}, nil
		},
		Answers: func(ctx context.Context, address string) error {
			client := redis.NewClient(&redis.Options{Addr: address})
			defer func() { _ = client.Close() }()
			return client.Ping(ctx).Err()
		},
	})
}

// TestRedisCluster: topics in several slots, on several nodes, are retried and dead-lettered.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	const topics, each = 8, 25
	cluster := startRedisCluster(t, 3)
	seen := newLedger()
	app := onRedis(t, cluster, 100*time.Millisecond, 200*time.Millisecond)
	for i := range topics {
		app.handle(fmt.Sprint("bill-", i), fmt.Sprint("orders-", i), func(msg *message.Message) error {
			if err := seen.failing(1)(msg); msg.UUID[0] != 'd' {
				return err
			}
			return errDown
		})
	}
	app.run()
	for i := range topics {
		for j := range each {
			app.publishTo(fmt.Sprint("orders-", i), fmt.Sprintf("ok-%d-%d", i, j), fmt.Sprintf("dead-%d-%d", i, j))
		}
	}
	seen.await(t, 2*topics*each, 1)
	wait.Until(t, func() bool {
		letters := int64(0)
		for i := range topics {
			letters += cluster.XLen(noContext, fmt.Sprint("retry.dead.billing.orders-", i)).Val()
		}
		return letters == topics*each
	}, "all dead letters are there")
	wait.Until(t, func() bool {
		var left atomic.Int64 // the nodes are asked side by side
		require.NoError(t, cluster.ForEachMaster(noContext, func(_ context.Context, node *redis.Client) error {
			left.Add(redisHas(t, node))
			return nil
		}))
		return left.Load() == 0
	}, "nothing is left")

	// The command finds the other nodes, whichever its address names.
	require.Zero(t, program.WithProgram("../../cmd/wmretry", func(wmretry string) int {
		for _, node := range cluster.Options().Addrs {
			output := func(args ...string) string {
				out, err := exec.Command(wmretry, append([]string{"--url", "redis://" + node}, args...)...).CombinedOutput()
				require.NoErrorf(t, err, "%s", out)
				return string(out)
			}
			status := output("status", "--json")
			for i := range topics {
				topic := fmt.Sprint("orders-", i)
				assert.Contains(t, status, topic)
				output("dead", "redrive", topic, "--limit", "1")
				wait.Until(t, func() bool { return strings.Count(output("dead", "list", topic, "--json"), "\n") == each },
					"a letter that was brought back has died again")
			}
		}
		return 0
	}))
}

// TestRedisClusterWithANodeThatDoesNotAnswer: it delays the retries of its own topics only. Those of another process show
// themselves by looks at the server.
func TestRedisClusterWithANodeThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	cluster := startRedisCluster(t, 3)
	for delay := 5 * time.Second; !nodeStops(t, cluster, delay); delay *= 2 { // this machine is slow
	}
}

// nodeStops reports whether the node has stopped before the first retry was due.
func nodeStops(t *testing.T, cluster *redis.ClusterClient, delay time.Duration) bool {
	t.Helper()
	const nodes, each, silence = 3, 20, 8 * time.Second
	ctx := context.WithoutCancel(t.Context())
	nodeOf := func(key string) int { return int(cluster.ClusterKeySlot(ctx, key).Val()) * nodes / 16384 }
	tagOf := func(name string) string {
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(name))
		return fmt.Sprintf("{retry.%d}", hash.Sum32()%16)
	}
	silent, topics := map[bool]int{}, []string(nil) // some topics of the node that is to stop, and some of others
	for i := 0; len(topics) < 8; i++ {
		topic := fmt.Sprint("orders-", i)
		keys := []int{nodeOf(topic), nodeOf(tagOf("retry.return.billing." + topic)), nodeOf(tagOf("billing\x00" + topic))}
		all, none := true, true
		for _, node := range keys {
			all, none = all && node == 0, none && node != 0
		}
		if (all || none) && silent[all] < 4 {
			silent[all]++
			topics = append(topics, topic)
		}
	}
	start := func(handle message.NoPublishHandlerFunc) *app {
		a := onRedis(t, cluster, delay)
		for _, topic := range topics {
			a.handle("bill-"+topic, topic, handle)
		}
		return a.run()
	}
	seen := newLedger()
	fails := start(func(msg *message.Message) error { seen.add(msg); return errDown })
	succeeds := start(seen.failing(1))
	for _, topic := range topics {
		for i := range each {
			fails.publishTo(topic, fmt.Sprint(topic, "/", delay, i))
		}
	}
	seen.await(t, each*len(topics), 0)
	fails.stop()
	addresses, err := cluster.ClusterSlots(ctx).Result()
	require.NoError(t, err)
	slices.SortFunc(addresses, func(a, b redis.ClusterSlot) int { return a.Start - b.Start })
	node := redisClient(t, &redis.Options{Addr: addresses[0].Nodes[0].Addr})
	require.NoError(t, node.Do(ctx, "client", "pause", (delay+silence).Milliseconds(), "all").Err())
	before := seen.reached(1)
	seen.await(t, each*len(topics), 1)
	succeeds.stop()
	if before > 0 {
		return false
	}
	latest := map[bool]time.Duration{}
	for id, tries := range seen.all() {
		topic, _, _ := strings.Cut(id, "/")
		late := tries[len(tries)-1].at.Sub(tries[0].at) - delay
		latest[nodeOf(topic) == 0] = max(latest[nodeOf(topic) == 0], late)
	}
	t.Log("latest on the node that did not answer, and on the others:", latest[true], latest[false])
	assert.Greater(t, latest[true], silence/2)
	assert.Less(t, latest[false], latest[true]/2)
	return true
}
