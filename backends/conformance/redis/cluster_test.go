package redis_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/server"
)

// startCluster returns a client of a Redis Cluster with several nodes, each with a part of the slots.
func startCluster(t *testing.T, nodes int) *redis.ClusterClient {
	t.Helper()
	ctx := t.Context()
	var addresses []string
	var clients []*redis.Client
	for range nodes {
		started, err := startNode(ctx)
		require.NoError(t, err)
		t.Cleanup(started.Stop)
		addresses = append(addresses, started.URL)
		client := redis.NewClient(&redis.Options{Addr: started.URL})
		t.Cleanup(func() { assert.NoError(t, client.Close()) })
		clients = append(clients, client)
	}
	const slots = 16384
	for i, client := range clients {
		require.NoError(t, client.ClusterAddSlotsRange(ctx, i*slots/nodes, (i+1)*slots/nodes-1).Err())
		host, port, err := net.SplitHostPort(addresses[0])
		require.NoError(t, err)
		require.NoError(t, client.Do(ctx, "cluster", "meet", host, port, busOf(port)).Err())
	}
	for _, client := range clients {
		eventually(t, func() bool { return strings.Contains(client.ClusterInfo(ctx).Val(), "cluster_state:ok") },
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

func startNode(ctx context.Context) (*server.Server, error) {
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

// Topics in several slots, on several nodes, are retried and dead-lettered.
func TestCluster(t *testing.T) {
	t.Parallel()
	const topics, each = 8, 25
	cluster := startCluster(t, 3)
	delays := backoff.Schedule{100 * time.Millisecond, 200 * time.Millisecond}
	connection := connect(t, cluster, 0, delays...)
	router, err := message.NewRouter(message.RouterConfig{}, logger(t))
	require.NoError(t, err)
	var seen ledger
	for i := range topics {
		connection.AddConsumerHandler(router, fmt.Sprint("bill-", i), fmt.Sprint("orders-", i),
			func(msg *message.Message) error {
				seen.call(msg)
				if msg.UUID[0] == 'd' || seen.of(msg.UUID) == 1 {
					return errDown
				}
				return nil
			})
	}
	var ended sync.WaitGroup
	ended.Go(func() { assert.NoError(t, router.Run(context.WithoutCancel(t.Context()))) })
	<-router.Running()
	var once, dead []string
	for i := range topics {
		for j := range each {
			ok, bad := fmt.Sprintf("ok-%d-%d", i, j), fmt.Sprintf("dead-%d-%d", i, j)
			once, dead = append(once, ok), append(dead, bad)
			require.NoError(t, connection.Publisher().Publish(fmt.Sprint("orders-", i), message.NewMessage(ok, nil),
				message.NewMessage(bad, nil)))
		}
	}
	eventually(t, func() bool { return seen.missing(2, once...) == 0 && seen.missing(3, dead...) == 0 },
		"all are retried")
	eventually(t, func() bool {
		letters := int64(0)
		for i := range topics {
			letters += cluster.XLen(t.Context(), fmt.Sprint("retry.dead.billing.orders-", i)).Val()
		}
		return letters == topics*each
	}, "dead letters")
	eventually(t, func() bool {
		var waiting atomic.Int64 // the nodes are asked side by side
		require.NoError(t, cluster.ForEachMaster(t.Context(), func(_ context.Context, node *redis.Client) error {
			waiting.Add(int64(len(left(t, node))))
			return nil
		}))
		return waiting.Load() == 0
	}, "nothing is left")
	require.NoError(t, router.Close())
	ended.Wait()
	require.NoError(t, connection.Close())
}

// A node that does not answer delays the retries of its own topics only. Those of another process show themselves by
// looks at the server.
func TestClusterWithANodeThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 3)
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
	type process struct {
		connection retry.Connection
		router     *message.Router
		ended      chan error
	}
	start := func(handler message.NoPublishHandlerFunc) *process {
		p := &process{connect(t, cluster, 0, delay), nil, make(chan error, 1)}
		p.router, _ = message.NewRouter(message.RouterConfig{}, logger(t))
		for _, topic := range topics {
			p.connection.AddConsumerHandler(p.router, "bill-"+topic, topic, handler)
		}
		go func() { p.ended <- p.router.Run(ctx) }()
		<-p.router.Running()
		return p
	}
	end := func(p *process) {
		require.NoError(t, p.router.Close())
		require.NoError(t, <-p.ended)
		require.NoError(t, p.connection.Close())
	}
	var mu sync.Mutex
	failed, back := map[string]time.Time{}, map[string]time.Duration{}
	var handled atomic.Int64
	fails := start(func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		handled.Add(1)
		failed[msg.UUID] = time.Now()
		return errDown
	})
	succeeds := start(func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		handled.Add(1)
		if at, known := failed[msg.UUID]; known {
			back[msg.UUID] = time.Since(at) - delay
		}
		return nil
	})
	for _, topic := range topics {
		for i := range each {
			require.NoError(t, fails.connection.Publisher().Publish(topic, message.NewMessage(fmt.Sprint(topic, "/", delay, i), nil)))
		}
	}
	eventually(t, func() bool { return handled.Load() >= int64(each*len(topics)) }, "all are handled once")
	end(fails)
	addresses, err := cluster.ClusterSlots(ctx).Result()
	require.NoError(t, err)
	slices.SortFunc(addresses, func(a, b redis.ClusterSlot) int { return a.Start - b.Start })
	node := newClient(t, addresses[0].Nodes[0].Addr)
	require.NoError(t, node.Do(ctx, "client", "pause", (delay+silence).Milliseconds(), "all").Err())
	mu.Lock()
	before := len(back)
	mu.Unlock()
	eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(back) == len(failed)
	}, "all come back")
	end(succeeds)
	if before > 0 {
		return false
	}
	latest := map[bool]time.Duration{}
	for id, late := range back {
		topic, _, _ := strings.Cut(id, "/")
		silent := nodeOf(topic) == 0
		latest[silent] = max(latest[silent], late)
	}
	t.Log("latest on the node that did not answer, and on the others:", latest[true], latest[false])
	assert.Greater(t, latest[true], silence/2)
	assert.Less(t, latest[false], latest[true]/2)
	return true
}
