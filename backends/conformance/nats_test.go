package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/natsretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/relay"
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

func startNATS(t *testing.T) *natsNode {
	t.Helper()
	return startNATSWithLimit(t, 0)
}

func startNATSWithLimit(t *testing.T, limit int64) *natsNode {
	t.Helper()
	n := &natsNode{t: t, store: t.TempDir(), port: natsserver.RANDOM_PORT, limit: limit}
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

// config is the configuration of a process.
func (n *natsNode) config(delays ...time.Duration) natsretry.Config {
	return natsretry.Config{Conn: n.connect(), Group: "billing", Policy: retry.Policy{Schedule: delays}}
}

// natsProcess is an app with one handler, "bill" of the topic "orders".
type natsProcess struct {
	retry.Connection
	stop func()
}

func runNATS(t *testing.T, config natsretry.Config, handler message.NoPublishHandlerFunc) *natsProcess {
	t.Helper()
	return runNATSWithLog(t, config, watermill.NopLogger{}, handler)
}

func runNATSWithLog(
	t *testing.T, config natsretry.Config, logger watermill.LoggerAdapter, handler message.NoPublishHandlerFunc,
) *natsProcess {
	t.Helper()
	retries, err := natsretry.Connect(config, logger)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, watermill.NopLogger{})
	require.NoError(t, err)
	retries.AddConsumerHandler(router, "bill", "orders", handler)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		require.NoError(t, err, "the router does not start")
	}
	p := &natsProcess{Connection: retries, stop: sync.OnceFunc(func() {
		assert.NoError(t, router.Close())
		assert.NoError(t, <-ended)
		assert.NoError(t, retries.Close())
	})}
	t.Cleanup(p.stop)
	return p
}

func publishNATS(t *testing.T, p *natsProcess, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		require.NoError(t, p.Publisher().Publish("orders", message.NewMessage(fmt.Sprint(i), []byte("order"))))
	}
}

// natsCalls counts the calls of a handler by message.
type natsCalls struct {
	mu   sync.Mutex
	all  map[string][]time.Time
	with [10]int // messages with at least so many calls
	came chan struct{}
}

func newNATSCalls() *natsCalls {
	return &natsCalls{all: map[string][]time.Time{}, came: make(chan struct{}, 1)}
}

func (c *natsCalls) add(msg *message.Message) (earlier int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	earlier = len(c.all[msg.UUID])
	c.all[msg.UUID] = append(c.all[msg.UUID], time.Now())
	c.with[min(earlier+1, len(c.with)-1)]++
	select {
	case c.came <- struct{}{}:
	default:
	}
	return earlier
}

// last returns when the last message had its first call.
func (c *natsCalls) last() (last time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.all {
		if at[0].After(last) {
			last = at[0]
		}
	}
	return last
}

// await waits until a number of messages has had a number of calls.
func (c *natsCalls) await(t *testing.T, messages, times int) {
	t.Helper()
	deadline := time.After(patience)
	for {
		c.mu.Lock()
		had := c.with[times]
		c.mu.Unlock()
		if had >= messages {
			return
		}
		select {
		case <-c.came:
		case <-deadline:
			require.Failf(t, "messages are missing", "%d of %d had %d calls", had, messages, times)
		}
	}
}

// TestNATSHeadersOfStrangers: what means something to the server does nothing on a copy, and a message that is not ours
// on a return topic stops none behind it.
func TestNATSHeadersOfStrangers(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	js := n.jetStream()
	seen := newNATSCalls()
	var mu sync.Mutex
	var rollups []string
	p := runNATS(t, n.config(2*time.Second), func(msg *message.Message) error {
		mu.Lock()
		rollups = append(rollups, msg.Metadata["Nats-Rollup"])
		mu.Unlock()
		if seen.add(msg) == 0 && msg.UUID != "" {
			return errors.New("down")
		}
		return nil
	})
	_, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"},
		AllowRollup: true})
	require.NoError(t, err)
	publishNATS(t, p, 0, 10)
	seen.await(t, 10, 1)
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: "orders", Header: nats.Header{
		"Nats-Rollup": {"all"}, "_watermill_message_uuid": {"10"},
	}})
	require.NoError(t, err)
	seen.await(t, 11, 1)
	for _, header := range []nats.Header{nil, {"a": {"1", "2"}}, {"_watermill_retry_metadata": {"%zz"}}} {
		_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: "retry.return.billing.orders", Header: header})
		require.NoError(t, err)
	}
	seen.await(t, 12, 1)
	seen.await(t, 11, 2)
	assert.EventuallyWithT(t, func(c *assert.CollectT) { assert.Empty(c, n.left()) }, patience, 50*time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, 2, len(slices.DeleteFunc(rollups, func(text string) bool { return text != "all" })))
}

// TestNATSServerRestarts: nothing is lost, and what was due meanwhile comes when the server is back. Messages that fail
// at once then take the place of none that still waits.
func TestNATSServerRestarts(t *testing.T) {
	t.Parallel()
	const messages, more, delay = 300, 100, 2 * time.Second
	n := startNATS(t)
	seen := newNATSCalls()
	p := runNATS(t, n.config(delay), func(msg *message.Message) error {
		if seen.add(msg) == 0 {
			return errors.New("down")
		}
		return nil
	})
	publishNATS(t, p, 0, messages)
	seen.await(t, messages, 1)
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		waiting := 0
		for subject := range n.left() {
			if strings.HasPrefix(subject, "retry.wait.") {
				waiting++
			}
		}
		assert.Positive(c, waiting)
	}, patience, 20*time.Millisecond)
	n.stop()
	time.Sleep(delay + 2500*time.Millisecond) // longer than a process reserves a subject for a message
	published := make(chan struct{})
	go func() {
		defer close(published)
		publishNATS(t, p, messages, messages+more) // nats.go sends them when the connection is back
	}()
	n.start()
	<-published
	seen.await(t, messages+more, 2)
	assert.EventuallyWithT(t, func(c *assert.CollectT) { assert.Empty(c, n.left()) }, patience, 50*time.Millisecond)
}

// TestNATSGivesBackAtClose: another process has the messages in flight at once.
func TestNATSGivesBackAtClose(t *testing.T) {
	t.Parallel()
	const messages = 100
	n := startNATS(t)
	first, blocked := newNATSCalls(), make(chan struct{})
	config := n.config(time.Second)
	config.Lease = time.Hour
	p := runNATS(t, config, func(msg *message.Message) error {
		first.add(msg)
		if msg.UUID == "0" {
			return nil
		}
		select {
		case <-msg.Context().Done():
			return msg.Context().Err()
		case <-blocked:
			return nil
		}
	})
	defer close(blocked)
	publishNATS(t, p, 0, 1)
	first.await(t, 1, 1)
	publishNATS(t, p, 1, messages)
	first.await(t, 17, 1)
	second := newNATSCalls()
	config.Conn = n.connect()
	runNATS(t, config, func(msg *message.Message) error { second.add(msg); return nil })
	go func() { _ = p.Connection.Close() }()
	second.await(t, messages-1, 1)
}

// TestNATSWithoutScheduledMessages: the tiers of the relay, as below NATS 2.12. A stream that refuses new messages at a
// limit cannot schedule messages either. What waits on tiers comes back when the server can.
func TestNATSWithoutScheduledMessages(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	js := n.jetStream()
	stream := jetstream.StreamConfig{Name: "retry", Subjects: []string{"retry.>"}, Retention: jetstream.WorkQueuePolicy,
		Discard: jetstream.DiscardNew, MaxMsgs: 1e6}
	_, err := js.CreateStream(t.Context(), stream)
	require.NoError(t, err)
	seen := newNATSCalls()
	handler := func(msg *message.Message) error {
		if seen.add(msg) == 0 {
			return errors.New("down")
		}
		return nil
	}
	p := runNATS(t, n.config(time.Second, 5*time.Second), handler)
	publishNATS(t, p, 0, 100)
	seen.await(t, 100, 2)
	for id, at := range seen.all {
		assert.GreaterOrEqual(t, at[1].Sub(at[0]), time.Second, id)
	}
	seen = newNATSCalls()
	publishNATS(t, p, 100, 150)
	seen.await(t, 50, 1)
	p.stop()
	tiered := n.left()
	assert.Contains(t, tiered, "retry.1s")
	assert.NotContains(t, fmt.Sprint(tiered), "retry.wait.")

	stream.Discard, stream.MaxMsgs = jetstream.DiscardOld, -1
	_, err = js.UpdateStream(t.Context(), stream)
	require.NoError(t, err)
	p = runNATS(t, n.config(time.Second), handler)
	seen.await(t, 50, 2)
	publishNATS(t, p, 150, 160)
	seen.await(t, 60, 2)
	assert.EventuallyWithT(t, func(c *assert.CollectT) { assert.Empty(c, n.left()) }, patience, 50*time.Millisecond)
}

// TestNATSTiersOfOldProcesses: a process that was started before the server had scheduled messages goes on to fill tiers.
// What it leaves there when it ends comes back, although no process has connected since.
func TestNATSTiersOfOldProcesses(t *testing.T) {
	t.Parallel()
	const messages, delay = 100, 5 * time.Second
	n := startNATS(t)
	js := n.jetStream()
	stream := jetstream.StreamConfig{Name: "retry", Subjects: []string{"retry.>"}, Retention: jetstream.WorkQueuePolicy,
		Discard: jetstream.DiscardNew, MaxMsgs: 1e6} // as below 2.12
	_, err := js.CreateStream(t.Context(), stream)
	require.NoError(t, err)
	seen := newNATSCalls()
	handler := func(msg *message.Message) error {
		if seen.add(msg) == 0 {
			return errors.New("down")
		}
		return nil
	}
	old := runNATS(t, n.config(delay), handler)
	stream.Discard, stream.MaxMsgs = jetstream.DiscardOld, -1
	_, err = js.UpdateStream(t.Context(), stream)
	require.NoError(t, err)

	retries, err := natsretry.Connect(n.config(delay), watermill.NopLogger{})
	require.NoError(t, err)
	publishNATS(t, old, 0, messages)
	seen.await(t, messages, 1)
	old.stop()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	retries.AddConsumerHandler(router, "bill", "orders", handler)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	seen.await(t, messages, 2)
	assert.EventuallyWithT(t, func(c *assert.CollectT) { assert.Empty(c, n.left()) }, patience, 50*time.Millisecond)
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	require.NoError(t, retries.Close())
	for id, at := range seen.all {
		assert.Len(t, at, 2, id)
		assert.GreaterOrEqual(t, at[1].Sub(at[0]), delay, id)
	}
}

// TestNATSForeignMessagesOnATier: each becomes a dead letter, and those behind them come back. One that is too large for
// any copy stays.
func TestNATSForeignMessagesOnATier(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	seen := newNATSCalls()
	runNATS(t, n.config(time.Minute), func(msg *message.Message) error {
		seen.add(msg)
		return nil
	})
	conn := n.connect()
	largest := int(conn.MaxPayload())
	js := n.jetStream()
	for _, data := range []int{0, 10, largest, largest - 100} {
		_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "retry.7s", Data: make([]byte, data)})
		require.NoError(t, err)
	}
	_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "retry.7s", Header: nats.Header{
		"long": {strings.Repeat("x", 65_000)}, "Nats-TTL": {"1h"},
	}})
	require.Error(t, err, "the stream has no TTLs")
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: "retry.7s", Header: nats.Header{
		"long": {strings.Repeat("x", 65_000)},
	}})
	require.NoError(t, err)
	good := message.NewMessage("good", nil)
	now := time.Now()
	retry.Record{
		Failures: 1, FirstFailedAt: now, LastFailedAt: now, DueAt: now.Add(time.Second), Topic: "orders", Handler: "bill",
		Reason: "down",
	}.Write(good.Metadata)
	header := nats.Header{"_watermill_message_uuid": {"good"}, recordkey.ReturnTo: {"billing.orders"}}
	for key, value := range good.Metadata {
		header[key] = []string{value}
	}
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: "retry.7s", Header: header})
	require.NoError(t, err)
	seen.await(t, 1, 1)
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, map[string]uint64{"retry.dead.unknown": 4, "retry.7s": 1}, n.left())
	}, patience, 50*time.Millisecond)
	store, err := natsretry.Letters(n.config(), nil)
	require.NoError(t, err)
	reasons := map[retry.DeadReason]int{}
	for letter, err := range store.Browse(t.Context(), "retry.dead.unknown", letters.Filter{}) {
		require.NoError(t, err)
		reasons[letter.Record.DeadReason]++
	}
	assert.Equal(t, map[retry.DeadReason]int{relay.DeadReasonForeign: 3, "": 1}, reasons, "one has no room for a record")
	require.NoError(t, store.Close())
}

// leaving is a dialer of a connection whose network drops packets when a message that waits is published.
type leaving struct {
	once sync.Once
	left chan struct{}
}

func (l *leaving) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return leavingConn{conn, l}, err
}

type leavingConn struct {
	net.Conn
	of *leaving
}

func (c leavingConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("PUB retry.wait.")) {
		c.of.once.Do(func() { close(c.of.left) })
	}
	select {
	case <-c.of.left:
		return len(b), nil
	default:
		return c.Conn.Write(b)
	}
}

// TestNATSCloseWhereTheNetworkDropsPackets: a tier with many messages is being emptied. One publish is waited for.
func TestNATSCloseWhereTheNetworkDropsPackets(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	runNATS(t, n.config(time.Minute), func(*message.Message) error { return nil }).stop()
	js := n.jetStream()
	now := time.Now()
	for i := range 64 {
		msg := message.NewMessage(fmt.Sprint(i), nil)
		retry.Record{
			Failures: 1, FirstFailedAt: now, LastFailedAt: now, DueAt: now.Add(time.Hour), Topic: "orders", Handler: "bill",
		}.Write(msg.Metadata)
		header := nats.Header{"_watermill_message_uuid": {msg.UUID}, recordkey.ReturnTo: {"billing.orders"}}
		for key, value := range msg.Metadata {
			header[key] = []string{value}
		}
		_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "retry.7s", Header: header})
		require.NoError(t, err)
	}
	dialer := &leaving{left: make(chan struct{})}
	conn, err := nats.Connect(n.server.ClientURL(), nats.MaxReconnects(-1), nats.SetCustomDialer(dialer))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	logs := watermill.NewCaptureLogger()
	retries, err := natsretry.Connect(natsretry.Config{
		Conn: conn, Group: "billing", Policy: retry.Policy{Schedule: backoff.Schedule{time.Minute}},
	}, logs)
	require.NoError(t, err)
	select {
	case <-dialer.left:
	case <-time.After(patience):
		require.Fail(t, "no message is forwarded")
	}
	closed := make(chan error, 1)
	go func() { closed <- retries.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "Close waits for more than one publish")
	}
	assert.LessOrEqual(t, len(logs.Captured()[watermill.ErrorLogLevel]), 1)
}

// cutting is a dialer whose first connection breaks when a message that waits is published.
type cutting struct{ once sync.Once }

func (c *cutting) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return cutConn{conn, c}, err
}

type cutConn struct {
	net.Conn
	of *cutting
}

func (c cutConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("PUB retry.wait.")) {
		c.of.once.Do(func() { _ = c.Close() })
	}
	return c.Conn.Write(b)
}

// TestNATSCopyWhoseConnectionIsLost: its answer cannot come any more, so the next try is not a minute later.
func TestNATSCopyWhoseConnectionIsLost(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	conn, err := nats.Connect(n.server.ClientURL(), nats.MaxReconnects(-1), nats.SetCustomDialer(&cutting{}),
		nats.ReconnectWait(10*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	config := n.config(time.Second)
	config.Conn = conn
	logs, seen := watermill.NewCaptureLogger(), newNATSCalls()
	p := runNATSWithLog(t, config, logs, func(msg *message.Message) error {
		if seen.add(msg) == 0 {
			return errors.New("down")
		}
		return nil
	})
	publishNATS(t, p, 0, 1)
	seen.await(t, 1, 2)
	held := 0
	for _, line := range logs.Captured()[watermill.ErrorLogLevel] {
		if pause, found := line.Fields["next_try_in"]; found {
			held++
			require.ErrorContains(t, line.Err, "the connection to NATS was lost")
			assert.LessOrEqual(t, pause, 5*time.Second)
		}
	}
	assert.Positive(t, held)
}

// deadOnNATS returns a server with dead letters of the group billing and the topic orders.
func deadOnNATS(t *testing.T, messages int) (*natsNode, letters.Store) {
	t.Helper()
	n := startNATS(t)
	seen := newNATSCalls()
	p := runNATS(t, n.config(time.Second), func(msg *message.Message) error {
		seen.add(msg)
		return backoff.Permanent(errors.New("never"))
	})
	publishNATS(t, p, 0, messages)
	seen.await(t, messages, 1)
	config := n.config()
	config.Lease = 10 * time.Second // it is renewed each 2 seconds
	store, err := natsretry.Letters(config, nil)
	require.NoError(t, err)
	return n, store
}

// TestNATSLockSurvivesALostAnswer: a renewal whose answer was lost has changed the key, and the lock is still held.
func TestNATSLockSurvivesALostAnswer(t *testing.T) {
	t.Parallel()
	n, store := deadOnNATS(t, 40)
	topic := "retry.dead.billing.orders"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := store.Redrive(ctx, topic, letters.Redrive{Rate: 1})
		ended <- err
	}()
	js := n.jetStream()
	var bucket jetstream.KeyValue
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		if bucket, err = js.KeyValue(t.Context(), "retry-locks"); assert.NoError(c, err) {
			keys, err := bucket.Keys(t.Context())
			assert.NoError(c, err)
			assert.Len(c, keys, 1)
		}
	}, patience, 10*time.Millisecond)
	keys, err := bucket.Keys(t.Context())
	require.NoError(t, err)
	for range 2 {
		entry, err := bucket.Get(t.Context(), keys[0])
		require.NoError(t, err)
		stored, err := bucket.Put(t.Context(), keys[0], entry.Value()) // as the renewal that the server has stored
		require.NoError(t, err)
		assert.EventuallyWithT(t, func(c *assert.CollectT) {
			entry, err := bucket.Get(t.Context(), keys[0])
			assert.NoError(c, err)
			assert.Greater(c, entry.Revision(), stored, "it is renewed")
		}, patience, 50*time.Millisecond)
		_, err = store.Redrive(t.Context(), topic, letters.Redrive{})
		require.ErrorIs(t, err, letters.ErrBusy)
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled, "it had the lock until then")
	require.NoError(t, store.Close())
}

// TestNATSLockIsLost: a redrive whose lock another has taken ends with an error.
func TestNATSLockIsLost(t *testing.T) {
	t.Parallel()
	const messages = 40
	n, store := deadOnNATS(t, messages)
	redriven := make(chan struct{}, messages)
	ended := make(chan error, 1)
	go func() {
		_, err := store.Redrive(t.Context(), "retry.dead.billing.orders", letters.Redrive{
			Rate: 5, Progress: func(letters.Progress) { redriven <- struct{}{} },
		})
		ended <- err
	}()
	<-redriven
	js := n.jetStream()
	stream, err := js.Stream(t.Context(), "KV_retry-locks")
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context()))
	require.ErrorContains(t, <-ended, "is lost")
	require.NoError(t, store.Close())
}

// TestNATSTopicsAreThoseOfWatermill: its publisher and its subscriber are on the other side.
func TestNATSTopicsAreThoseOfWatermill(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	publisher, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: n.server.ClientURL(),
		JetStream: wmnats.JetStreamConfig{AutoProvision: true}}, nil)
	require.NoError(t, err)
	msg := message.NewMessage("from-watermill", []byte("payload"))
	msg.Metadata["key"] = "value"
	require.NoError(t, publisher.Publish("orders", msg))
	require.NoError(t, publisher.Close())
	got := make(chan *message.Message, 10)
	p := runNATS(t, n.config(time.Second), func(msg *message.Message) error { got <- msg.Copy(); return nil })
	came := <-got
	assert.Equal(t, "from-watermill", came.UUID)
	assert.Equal(t, message.Metadata{"key": "value"}, came.Metadata)
	assert.Equal(t, "payload", string(came.Payload))

	subscriber, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{URL: n.server.ClientURL()}, nil)
	require.NoError(t, err)
	messages, err := subscriber.Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.NoError(t, p.Publisher().Publish("orders", msg.Copy()))
	for came = range messages {
		came.Ack()
		if came.Metadata["key"] == "value" {
			break
		}
	}
	assert.Equal(t, "from-watermill", came.UUID)
	require.NoError(t, subscriber.Close())
}

// TestNATSClusterLosesItsLeader: a server that dies takes nothing with it, and what waits comes when it is due.
func TestNATSClusterLosesItsLeader(t *testing.T) {
	t.Parallel()
	const messages = 200
	nodes := startNATSCluster(t, 3)
	var urls []string
	for _, node := range nodes {
		urls = append(urls, node.ClientURL())
	}
	conn, err := nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	seen := newNATSCalls()
	p := runNATS(t, natsretry.Config{
		Conn: conn, Group: "billing", Policy: retry.Policy{Schedule: backoff.Schedule{5 * time.Second}},
	}, func(msg *message.Message) error {
		if seen.add(msg) == 0 {
			return errors.New("down")
		}
		return nil
	})
	publishNATS(t, p, 0, messages)
	seen.await(t, messages, 1)
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
	seen.await(t, messages, 2)
	for id, at := range seen.all {
		assert.GreaterOrEqual(t, at[1].Sub(at[0]), 5*time.Second, id)
	}
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		stream, err := js.Stream(t.Context(), "retry")
		if assert.NoError(c, err) {
			assert.Zero(c, stream.CachedInfo().State.Msgs)
		}
	}, patience, 100*time.Millisecond)
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
		require.Eventually(t, func() bool { return node.ClusterAddr() != nil }, patience, time.Millisecond)
		routes = []*url.URL{{Scheme: "nats", Host: node.ClusterAddr().String()}}
	}
	for _, node := range nodes {
		require.True(t, node.ReadyForConnections(patience))
	}
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(nodes, func(node *natsserver.Server) bool {
			return node.JetStreamIsLeader() && len(node.JetStreamClusterPeers()) == size
		})
	}, patience, 50*time.Millisecond)
	return nodes
}
