package conformance

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/backends/natsretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// natsNode is a NATS server in this process, which can be restarted on its data.
type natsNode struct {
	t      *testing.T
	store  string
	port   int
	limit  int64 // bytes that the server stores; 0: no limit
	server *natsserver.Server
}

func startNATS(t *testing.T, limit ...int64) *natsNode {
	t.Helper()
	n := &natsNode{t: t, store: t.TempDir(), port: natsserver.RANDOM_PORT, limit: slices.Max(append(limit, 0))}
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

func (n *natsNode) start() {
	n.t.Helper()
	var err error
	n.server, err = natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: n.port, JetStream: true, StoreDir: n.store, NoSigs: true, NoLog: true,
		JetStreamMaxStore: n.limit,
	})
	require.NoError(n.t, err)
	n.server.Start()
	require.True(n.t, n.server.ReadyForConnections(time.Minute))
	n.port = n.server.Addr().(*net.TCPAddr).Port
}

func (n *natsNode) stop() {
	n.server.Shutdown()
	n.server.WaitForShutdown()
}

// connect returns a connection of a process.
func (n *natsNode) connect() *nats.Conn {
	n.t.Helper()
	conn, err := nats.Connect(n.server.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
		nats.ReconnectJitter(time.Millisecond, time.Millisecond))
	require.NoError(n.t, err)
	n.t.Cleanup(conn.Close)
	return conn
}

func (n *natsNode) jetStream() jetstream.JetStream {
	n.t.Helper()
	js, err := jetstream.New(n.connect())
	require.NoError(n.t, err)
	return js
}

// left returns how many messages the stream of the retries has on each subject.
func (n *natsNode) left() map[string]uint64 {
	n.t.Helper()
	stream, err := n.jetStream().Stream(n.t.Context(), "retry")
	require.NoError(n.t, err)
	info, err := stream.Info(n.t.Context(), jetstream.WithSubjectFilter(">"))
	require.NoError(n.t, err)
	return info.State.Subjects
}

// awaitNothing waits until nothing of the retries is left.
func (n *natsNode) awaitNothing() {
	n.t.Helper()
	wait.Until(n.t, func() bool { return len(n.left()) == 0 }, "nothing is left")
}

// config is the configuration of a process.
func (n *natsNode) config(delays ...time.Duration) natsretry.Config {
	return natsretry.Config{Conn: n.connect(), Group: "billing", Policy: retry.Policy{Schedule: delays}}
}

// app connects an app.
func (n *natsNode) app(delays ...time.Duration) *app { return onNATS(n.t, n.config(delays...)) }

func onNATS(t *testing.T, config natsretry.Config) *app {
	t.Helper()
	return connect(t, func(logger watermill.LoggerAdapter) (retry.Connection, error) {
		return natsretry.Connect(config, logger)
	})
}

// TestNATSHeadersOfStrangers: what means something to the server does nothing on a copy, and a message that is not ours
// on a return topic stops none behind it.
func TestNATSHeadersOfStrangers(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	js := n.jetStream()
	seen := newLedger()
	app := n.app(2 * time.Second).bills(func(msg *message.Message) error {
		if err := seen.failing(1)(msg); msg.UUID != "" {
			return err
		}
		return nil
	})
	_, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: orders, Subjects: []string{orders}, AllowRollup: true})
	require.NoError(t, err)
	app.publish(ids(10)...)
	seen.await(t, 10, 0)
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: orders, Header: nats.Header{
		"Nats-Rollup": {"all"}, "_watermill_message_uuid": {"rollup"},
	}})
	require.NoError(t, err)
	seen.await(t, 11, 0)
	for _, header := range []nats.Header{nil, {"a": {"1", "2"}}, {"_watermill_retry_metadata": {"%zz"}}} {
		_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: "retry.return.billing.orders", Header: header})
		require.NoError(t, err)
	}
	seen.await(t, 12, 0)
	seen.await(t, 11, 1)
	n.awaitNothing()
	for _, one := range seen.of("rollup") {
		assert.Equal(t, "all", one.msg.Metadata["Nats-Rollup"])
	}
}

// tapped makes connections that ask before each write whether they send the bytes.
type tapped func(to net.Conn, bytes []byte) (sends bool)

func (d tapped) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return &tappedConn{conn, d}, err
}

type tappedConn struct {
	net.Conn
	sends tapped
}

func (c *tappedConn) Write(b []byte) (int, error) {
	if c.sends(c.Conn, b) {
		return c.Conn.Write(b)
	}
	return len(b), nil
}

// tap returns a configuration of a process with such a connection.
func (n *natsNode) tap(of tapped, delay time.Duration) natsretry.Config {
	n.t.Helper()
	conn, err := nats.Connect(n.server.ClientURL(), nats.MaxReconnects(-1), nats.SetCustomDialer(of),
		nats.ReconnectWait(10*time.Millisecond))
	require.NoError(n.t, err)
	n.t.Cleanup(conn.Close)
	config := n.config(delay)
	config.Conn = conn
	return config
}

func isWaiting(publish []byte) bool { return bytes.Contains(publish, []byte("PUB retry.wait.")) }

// TestNATSCopyWhoseConnectionIsLost: its answer cannot come any more, so the next try is not a minute later.
func TestNATSCopyWhoseConnectionIsLost(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	var once sync.Once
	seen := newLedger()
	app := onNATS(t, n.tap(func(conn net.Conn, b []byte) bool {
		if isWaiting(b) {
			once.Do(func() { _ = conn.Close() })
		}
		return true
	}, time.Second)).bills(seen.failing(1))
	app.publish("1")
	seen.await(t, 1, 1)
	held := 0
	for _, line := range app.logged(watermill.ErrorLogLevel, "") {
		if pause, found := line.Fields["next_try_in"]; found {
			held++
			require.ErrorContains(t, line.Err, "the connection to NATS was lost")
			assert.LessOrEqual(t, pause, 5*time.Second)
		}
	}
	assert.Positive(t, held)
}

// TestNATSRequestOfALostConnection: the server keeps a request for messages over a quick reconnect, as long as its
// client listens. It must not stay beside the next one: both would bring messages, and half of them for no handler.
func TestNATSRequestOfALostConnection(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	requests, cut := make(chan string, 10), make(chan net.Conn, 10)
	config := n.tap(func(conn net.Conn, b []byte) bool {
		if _, request, is := strings.Cut(string(b), "PUB $JS.API.CONSUMER.MSG.NEXT.orders."); is {
			consumer, _, _ := strings.Cut(request, " ")
			requests <- consumer
			cut <- conn
		}
		return true
	}, time.Hour)
	onNATS(t, config).bills(nothing)
	js := n.jetStream()
	// waiting returns how many requests the server has. The answer to another one shows that it has read all before.
	waiting := func(consumer string) int {
		_, err := config.Conn.Request("$JS.API.CONSUMER.MSG.NEXT.orders."+consumer, []byte(`{"batch":1,"no_wait":true}`),
			wait.Patience)
		require.NoError(t, err)
		require.Equal(t, consumer, wait.For(t, requests, "it is written"))
		info, err := js.Consumer(t.Context(), orders, consumer)
		require.NoError(t, err)
		return info.CachedInfo().NumWaiting
	}
	consumer := wait.For(t, requests, "a request")
	require.Equal(t, 1, waiting(consumer))
	require.NoError(t, wait.For(t, cut, "its connection").Close())
	wait.For(t, requests, "the next request")
	assert.Equal(t, 1, waiting(consumer))
}

// TestNATSLockSurvivesALostAnswer: a renewal whose answer was lost has changed the key, and the lock is still held.
func TestNATSLockSurvivesALostAnswer(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	seen := newLedger()
	n.app(time.Second).bills(func(msg *message.Message) error {
		seen.add(msg)
		return backoff.Permanent(errDown)
	}).publish(ids(40)...)
	seen.await(t, 40, 0)
	config := n.config()
	config.Lease = 10 * time.Second // it is renewed each 2 seconds
	store, err := natsretry.Letters(config, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := store.Redrive(ctx, deadOrders, letters.Redrive{Rate: 1})
		ended <- err
	}()
	js := n.jetStream()
	var bucket jetstream.KeyValue
	var keys []string
	wait.Until(t, func() bool {
		if bucket, err = js.KeyValue(t.Context(), "retry-locks"); err == nil {
			keys, _ = bucket.Keys(t.Context())
		}
		return len(keys) == 1
	}, "there is a lock")
	for range 2 {
		entry, err := bucket.Get(t.Context(), keys[0])
		require.NoError(t, err)
		stored, err := bucket.Put(t.Context(), keys[0], entry.Value()) // as the renewal that the server has stored
		require.NoError(t, err)
		wait.Until(t, func() bool {
			entry, err := bucket.Get(t.Context(), keys[0])
			return err == nil && entry.Revision() > stored
		}, "it is renewed")
		_, err = store.Redrive(t.Context(), deadOrders, letters.Redrive{})
		require.ErrorIs(t, err, letters.ErrBusy)
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled, "it had the lock until then")
	require.NoError(t, store.Close())
}

// TestNATSClusterLosesItsLeader: a server that dies takes nothing with it, and what waits comes when it is due.
func TestNATSClusterLosesItsLeader(t *testing.T) {
	t.Parallel()
	const messages, delay = 200, 5 * time.Second
	nodes := startNATSCluster(t, 3)
	var urls []string
	for _, node := range nodes {
		urls = append(urls, node.ClientURL())
	}
	conn, err := nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	seen := newLedger()
	onNATS(t, natsretry.Config{
		Conn: conn, Group: "billing", Policy: retry.Policy{Schedule: backoff.Schedule{delay}},
	}).bills(seen.failing(1)).publish(ids(messages)...)
	seen.await(t, messages, 0)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "retry")
	require.NoError(t, err)
	require.Equal(t, 3, stream.CachedInfo().Config.Replicas)
	leader := stream.CachedInfo().Cluster.Leader
	for _, node := range nodes {
		if node.Name() == leader {
			node.Shutdown()
		}
	}
	seen.await(t, messages, 1)
	seen.neverEarly(t, monotonic, delay)
	wait.Until(t, func() bool {
		stream, err := js.Stream(t.Context(), "retry")
		return err == nil && stream.CachedInfo().State.Msgs == 0
	}, "nothing is left")
}

// startNATSCluster starts servers that learn of each other from one without JetStream.
func startNATSCluster(t *testing.T, size int) (nodes []*natsserver.Server) {
	t.Helper()
	var routes []*url.URL
	for i := range size + 1 {
		node, err := natsserver.NewServer(&natsserver.Options{
			Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: i > 0, StoreDir: t.TempDir(), NoSigs: true,
			NoLog: true, ServerName: fmt.Sprintf("%s-%d", t.Name(), i), Routes: routes,
			Cluster: natsserver.ClusterOpts{Name: t.Name(), Host: "127.0.0.1", Port: natsserver.RANDOM_PORT},
		})
		require.NoError(t, err)
		node.Start()
		t.Cleanup(func() {
			node.Shutdown()
			node.WaitForShutdown()
		})
		if i > 0 {
			nodes = append(nodes, node)
			continue
		}
		wait.Until(t, func() bool { return node.ClusterAddr() != nil }, "it listens")
		routes = []*url.URL{{Scheme: "nats", Host: node.ClusterAddr().String()}}
	}
	for _, node := range nodes {
		require.True(t, node.ReadyForConnections(wait.Patience))
	}
	wait.Until(t, func() bool {
		return slices.ContainsFunc(nodes, func(node *natsserver.Server) bool {
			return node.JetStreamIsLeader() && len(node.JetStreamClusterPeers()) == size
		})
	}, "the cluster is whole")
	return nodes
}
