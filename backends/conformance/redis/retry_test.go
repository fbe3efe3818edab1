package redis_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

func ids(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(i)
	}
	return all
}

// Messages that are due together come once, none early, and nothing of them is left.
func TestMessagesThatAreDueTogether(t *testing.T) {
	t.Parallel()
	const count, delay = 100, time.Second
	client := start(t)
	var mu sync.Mutex
	failed, early := map[string]time.Time{}, 0
	connection := connect(t, client, 0, delay)
	var seen ledger
	run(t, connection, "bill", func(msg *message.Message) error {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		if seen.call(msg) == 1 {
			failed[msg.UUID] = now
			return errDown
		}
		if now.Sub(failed[msg.UUID]) < delay {
			early++
		}
		return nil
	})
	publish(t, connection.Publisher(), ids(count)...)
	eventually(t, func() bool { return seen.missing(2, ids(count)...) == 0 }, "retries")
	eventually(t, func() bool { return len(left(t, client)) == 0 && inFlight(t, client) == 0 }, "nothing is left")
	mu.Lock()
	defer mu.Unlock()
	assert.Zero(t, early)
	length, err := client.XLen(t.Context(), orders).Result()
	require.NoError(t, err)
	assert.EqualValues(t, count, length, "the app's own entries stay")
}

// What is in flight at Close goes to another process at once, and not after the lease. No consumer is left but that of
// the entries which were given back.
func TestCloseGivesBack(t *testing.T) {
	t.Parallel()
	for _, retried := range []bool{false, true} {
		t.Run(fmt.Sprint("retried=", retried), func(t *testing.T) {
			t.Parallel()
			client := start(t)
			var seen ledger
			blocked, release := make(chan struct{}, 1), make(chan struct{})
			first := connect(t, client, time.Hour, 100*time.Millisecond)
			stop := run(t, first, "bill", func(msg *message.Message) error {
				if seen.call(msg) == 1 && retried {
					return errDown
				}
				blocked <- struct{}{}
				<-release
				return errDown
			})
			defer close(release)
			second := connect(t, client, time.Hour, 100*time.Millisecond)
			got := make(chan string, 10)
			other := func(msg *message.Message) error {
				got <- msg.UUID
				return nil
			}
			publish(t, second.Publisher(), "1")
			<-blocked
			run(t, second, "bill", other)
			stop()
			select {
			case id := <-got:
				assert.Equal(t, "1", id)
			case <-time.After(soon):
				require.Fail(t, "the message does not come")
			}
			eventually(t, func() bool { return len(left(t, client)) == 0 && inFlight(t, client) == 0 },
				"nothing is left")
		})
	}
}

// Connections are closed again and again. Each message is handled, and retried.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	const count = 500
	client := start(t)
	killer := newClient(t, client.Options().Addr)
	var seen ledger
	connection := connect(t, client, 2*time.Second, 500*time.Millisecond)
	run(t, connection, "bill", func(msg *message.Message) error {
		if seen.call(msg) == 1 {
			return errDown
		}
		return nil
	})
	publish(t, connection.Publisher(), ids(count)...)
	kills := 0
	for began := time.Now(); seen.missing(2, ids(count)...) > 0 && time.Since(began) < soon; {
		time.Sleep(10 * time.Millisecond)
		killed, err := killer.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Result()
		require.NoError(t, err)
		if killed > 0 && time.Since(began) < 5*time.Second {
			kills++
		}
	}
	require.Zero(t, seen.missing(2, ids(count)...), "all are retried")
	eventually(t, func() bool { return len(left(t, client)) == 0 && inFlight(t, client) == 0 }, "nothing is left")
	twice := 0
	for _, id := range ids(count) {
		if seen.of(id) > 2 {
			twice++
		}
	}
	t.Logf("%d times all connections were closed; %d of %d messages came more often than needed", kills, twice, count)
	assert.Positive(t, kills)
}

// dropping is a connection of a network that drops what the client sends.
type dropping struct {
	net.Conn
	drops   *atomic.Bool
	dropped *atomic.Int64
}

func (d dropping) Write(b []byte) (int, error) {
	if d.drops.Load() {
		d.dropped.Add(1)
		return len(b), nil
	}
	return d.Conn.Write(b)
}

// Close ends on a network that drops packets, while messages are in flight and a command waits for its answer. What was
// in flight comes again elsewhere.
func TestCloseWhereTheNetworkDropsPackets(t *testing.T) {
	t.Parallel()
	const count = 20
	server := start(t)
	var drops atomic.Bool
	var dropped atomic.Int64
	options := *server.Options()
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		connection, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return dropping{connection, &drops, &dropped}, err
	}
	options.ReadTimeout, options.ContextTimeoutEnabled = -1, true // only the deadlines of the package
	client := redis.NewClient(&options)
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	var seen ledger
	release := make(chan struct{})
	handle := func(msg *message.Message) error {
		if seen.call(msg) == 1 {
			<-release
			return errDown
		}
		return nil
	}
	connection := connect(t, client, time.Second, 100*time.Millisecond)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 100 * time.Millisecond}, logger(t))
	require.NoError(t, err)
	connection.AddConsumerHandler(router, "bill", orders, handle)
	go func() { _ = router.Run(context.WithoutCancel(t.Context())) }()
	<-router.Running()
	other := connect(t, server, time.Second, 100*time.Millisecond)
	publish(t, other.Publisher(), ids(count)...)
	eventually(t, func() bool { return seen.missing(1, ids(count)...) == count-16 }, "16 are in flight")
	drops.Store(true)
	eventually(t, func() bool { return dropped.Load() >= 4 }, "commands wait")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = router.Close()
		_ = connection.Close() // the consumer cannot be deleted
	}()
	await(t, ended, "Close has ended")
	close(release)
	run(t, other, "bill", handle)
	eventually(t, func() bool { return seen.missing(2, ids(count)...) == 0 }, "all are retried")
}

// A handler learns that another process has its message: the context of the message ends at the next renewal.
func TestContextOfALostLease(t *testing.T) {
	t.Parallel()
	client := start(t)
	ctx := t.Context()
	for _, retried := range []bool{false, true} {
		var seen ledger
		entered, ended := make(chan struct{}), make(chan struct{})
		connection := connect(t, client, time.Second, 100*time.Millisecond)
		stop := run(t, connection, "bill", func(msg *message.Message) error {
			if seen.call(msg) == 1 && retried {
				return errDown
			}
			close(entered)
			<-msg.Context().Done()
			close(ended)
			return nil
		})
		publish(t, connection.Publisher(), "1")
		await(t, entered, "the message is in flight")
		if retried {
			owners, err := client.Keys(ctx, "retry.return.*:owners").Result()
			require.NoError(t, err)
			require.Len(t, owners, 1)
			id, err := client.HKeys(ctx, owners[0]).Result()
			require.NoError(t, err)
			require.Len(t, id, 1)
			require.NoError(t, client.HSet(ctx, owners[0], id[0], "other").Err())
		} else {
			pending, err := client.XPendingExt(ctx, &redis.XPendingExtArgs{
				Stream: orders, Group: group, Start: "-", End: "+", Count: 10,
			}).Result()
			require.NoError(t, err)
			require.Len(t, pending, 1)
			require.NoError(t, client.XClaim(ctx, &redis.XClaimArgs{
				Stream: orders, Group: group, Consumer: "other", Messages: []string{pending[0].ID},
			}).Err())
		}
		await(t, ended, "its context has ended")
		stop()
		require.NoError(t, client.FlushAll(ctx).Err())
	}
}

func await(t *testing.T, event <-chan struct{}, message string) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(soon):
		require.Fail(t, message)
	}
}

// A stream that was deleted is read again when it is there again.
func TestADeletedStream(t *testing.T) {
	t.Parallel()
	client := start(t)
	var seen ledger
	connection := connect(t, client, 0, time.Second)
	run(t, connection, "bill", func(msg *message.Message) error {
		seen.call(msg)
		return nil
	})
	publish(t, connection.Publisher(), "1")
	eventually(t, func() bool { return seen.of("1") == 1 }, "before")
	require.NoError(t, client.Del(t.Context(), orders).Err())
	publish(t, connection.Publisher(), "2")
	eventually(t, func() bool { return seen.of("2") == 1 }, "after")
}

// Other services use watermill-redisstream on the same topics.
func TestInteroperatesWithRedisstream(t *testing.T) {
	t.Parallel()
	client := start(t)
	stock, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: newStockClient(client)}, nil)
	require.NoError(t, err)
	defer func() { assert.NoError(t, stock.Close()) }()
	subscriber, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client: newStockClient(client), ConsumerGroup: "other", DisableIndefiniteInitialBlock: true,
	}, nil)
	require.NoError(t, err)
	defer func() { assert.NoError(t, subscriber.Close()) }()
	others, err := subscriber.Subscribe(t.Context(), orders)
	require.NoError(t, err)

	got := make(chan *message.Message, 10)
	connection := connect(t, client, 0, time.Second)
	run(t, connection, "bill", func(msg *message.Message) error {
		got <- msg.Copy()
		return nil
	})
	for name, publisher := range map[string]message.Publisher{
		"redisstream": stock, "redisretry": connection.Publisher(),
	} {
		msg := message.NewMessage(name, []byte("\x00\xff"))
		msg.Metadata = message.Metadata{"key": "\x00\xff", "": "empty"}
		require.NoError(t, publisher.Publish(orders, msg))
		ours, theirs := <-got, <-others
		theirs.Ack()
		for _, one := range []*message.Message{ours, theirs} {
			assert.Equal(t, msg.UUID, one.UUID)
			assert.Equal(t, msg.Payload, one.Payload)
			assert.Equal(t, msg.Metadata, one.Metadata)
		}
	}
}

func newStockClient(client *redis.Client) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: client.Options().Addr})
}

// What cannot be read is a dead letter, on the topic and on the return topic, and the messages behind it are handled.
func TestForeignMessages(t *testing.T) {
	t.Parallel()
	client := start(t)
	var seen ledger
	connection := connect(t, client, 0, 300*time.Millisecond)
	run(t, connection, "bill", func(msg *message.Message) error {
		if seen.call(msg) == 1 {
			return errDown
		}
		return nil
	}, retry.Options{Concurrency: 1})
	ctx := t.Context()
	require.NoError(t, client.XAdd(ctx, &redis.XAddArgs{
		Stream: orders, Values: []string{"payload", "of another program", "type", "csv"},
	}).Err())
	publish(t, connection.Publisher(), "1")
	var due string
	eventually(t, func() bool {
		for _, key := range left(t, client) {
			if strings.HasSuffix(key, ":due") {
				due = key
			}
		}
		return due != ""
	}, "a message waits")
	messages := strings.TrimSuffix(due, "due") + "messages"
	require.NoError(t, client.HSet(ctx, messages, "strange", "bytes of another program").Err())
	strange, empty := redis.Z{Score: 1, Member: "strange"}, redis.Z{Score: 2, Member: "empty"}
	require.NoError(t, client.ZAdd(ctx, due, strange, empty).Err())
	publish(t, connection.Publisher(), "2")
	eventually(t, func() bool { return seen.missing(2, "1", "2") == 0 }, "the others")
	eventually(t, func() bool { return len(left(t, client)) == 0 && inFlight(t, client) == 0 }, "nothing is left")

	letters, err := client.XRange(ctx, "retry.dead.unknown", "-", "+").Result()
	require.NoError(t, err)
	require.Len(t, letters, 2)
	payloads := map[string]message.Metadata{}
	for _, entry := range letters {
		letter, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(entry.Values)
		require.NoError(t, err)
		record, ok := retry.ReadRecord(letter.Metadata)
		require.True(t, ok)
		assert.Equal(t, relay.DeadReasonForeign, record.DeadReason)
		payloads[string(letter.Payload)] = letter.Metadata
	}
	require.Contains(t, payloads, "bytes of another program")
	assert.Equal(t, "csv", payloads["of another program"]["type"])
}

// A topic whose key is no stream any more stops no other topic of its group.
func TestBrokenTopicStopsNoOther(t *testing.T) {
	t.Parallel()
	client := start(t)
	connection := connect(t, client, 0, time.Second)
	router, err := message.NewRouter(message.RouterConfig{}, logger(t))
	require.NoError(t, err)
	var seen ledger
	for name, topic := range map[string]string{"bill": orders, "mail": "mails"} {
		connection.AddConsumerHandler(router, name, topic, func(msg *message.Message) error {
			seen.call(msg)
			return nil
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
	<-router.Running()
	publish(t, connection.Publisher(), "before")
	eventually(t, func() bool { return seen.of("before") == 1 }, "before")
	require.NoError(t, client.Set(t.Context(), "mails", "no stream", 0).Err())
	for _, id := range ids(20) {
		publish(t, connection.Publisher(), id)
		eventually(t, func() bool { return seen.of(id) == 1 }, id)
	}
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	_ = connection.Close() // the consumer of the broken topic cannot be deleted
}

// A server that is over maxmemory takes no new message. What waits there comes back, and is deleted.
func TestServerThatIsFull(t *testing.T) {
	t.Parallel()
	const count, delay = 50, time.Second
	client := start(t)
	var seen ledger
	connection := connect(t, client, minLease, delay)
	run(t, connection, "bill", func(msg *message.Message) error {
		if seen.call(msg) == 1 {
			return errDown
		}
		return nil
	})
	publish(t, connection.Publisher(), ids(count)...)
	eventually(t, func() bool { return waiting(t, client) == count }, "all wait")
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.ErrorContains(t, client.Set(t.Context(), "new", "value", 0).Err(), "OOM")
	eventually(t, func() bool { return seen.missing(2, ids(count)...) == 0 }, "retries")
	eventually(t, func() bool { return waiting(t, client) == 0 }, "nothing is left")
}

const minLease = time.Second

// waiting returns how many messages are in the sorted sets of return topics.
func waiting(t *testing.T, client redis.UniversalClient) (n int64) {
	t.Helper()
	keys, err := client.Keys(context.Background(), "retry.return.*:due").Result()
	require.NoError(t, err)
	for _, key := range keys {
		count, err := client.ZCard(context.Background(), key).Result()
		require.NoError(t, err)
		n += count
	}
	return n
}
