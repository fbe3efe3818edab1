package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// patience is how long a test waits for an event.
const patience = 3 * time.Minute // a busy machine takes minutes

const uuidHeader = "_watermill_message_uuid"

func brokerURL(t testing.TB) string {
	t.Helper()
	uri := os.Getenv("AMQP_URL")
	if uri == "" {
		t.Fatal("AMQP_URL is not set: run `make test`, which finds or starts a RabbitMQ, or set AMQP_URL=amqp://user:password@host:port/")
	}
	return uri
}

func unique(t testing.TB, base string) string {
	t.Helper()
	suffix := make([]byte, 4)
	_, err := rand.Read(suffix)
	require.NoError(t, err)
	return base + "_" + hex.EncodeToString(suffix)
}

func connect(t testing.TB) *amqp091.Connection {
	t.Helper()
	connection, err := amqp091.Dial(brokerURL(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func channelOf(t testing.TB) *amqp091.Channel {
	t.Helper()
	channel, err := connect(t).Channel()
	require.NoError(t, err)
	return channel
}

func managementOf(t testing.TB) *rabbithole.Client {
	t.Helper()
	uri, err := url.Parse(brokerURL(t))
	require.NoError(t, err)
	endpoint := os.Getenv("AMQP_MANAGEMENT_URL")
	if endpoint == "" {
		port := 5672
		if uri.Port() != "" {
			port, err = strconv.Atoi(uri.Port())
			require.NoError(t, err)
		}
		endpoint = "http://" + net.JoinHostPort(uri.Hostname(), strconv.Itoa(port+10_000))
	}
	password, _ := uri.User.Password()
	client, err := rabbithole.NewClient(endpoint, uri.User.Username(), password)
	require.NoError(t, err)
	return client
}

// queues are a work queue and what the library declares for it.
type queues struct {
	t          testing.TB
	work, dead string
	prefix     string
	channel    *amqp091.Channel
	topology   topology.Topology
}

// declare declares a work queue as the library does. All of it is deleted when the test ends.
func declare(t testing.TB) *queues {
	t.Helper()
	work := unique(t, "wmretry_test")
	q := &queues{t: t, work: work, dead: deadletter.QueueOf(work), prefix: work + "_own", channel: channelOf(t)}
	q.topology = topology.New(topology.Config{Tiers: backoff.Schedule{time.Minute}.Tiers(), Prefix: q.prefix},
		topology.Queue{Name: work, Durable: true, Arguments: amqp091.Table{"x-queue-type": "quorum"}})
	require.NoError(t, q.topology.Declare(q.channel))
	t.Cleanup(func() { remove(t, q.topology) })
	return q
}

func remove(t testing.TB, of topology.Topology) {
	t.Helper()
	connection, err := amqp091.Dial(brokerURL(t))
	require.NoError(t, err)
	defer func() { _ = connection.Close() }()
	channel, err := connection.Channel()
	require.NoError(t, err)
	for _, queue := range append(of.Queues, of.WorkQueue) {
		_, err := channel.QueueDelete(queue.Name, false, false, false)
		require.NoError(t, err)
	}
	for _, exchange := range of.Exchanges {
		require.NoError(t, channel.ExchangeDelete(exchange.Name, false, false))
	}
}

// letter is a dead letter as the library publishes it.
func letter(id string, record retry.Record, body []byte) amqp091.Publishing {
	metadata := message.Metadata{}
	record.Write(metadata)
	headers := amqp091.Table{uuidHeader: id}
	for key, value := range metadata {
		headers[key] = value
	}
	return amqp091.Publishing{DeliveryMode: amqp091.Persistent, ContentType: "application/json", Headers: headers, Body: body}
}

// timeout is the record of a message whose retries were used up.
func timeout(n int) retry.Record {
	now := time.Now().UTC().Truncate(time.Millisecond)
	return retry.Record{
		Failures: 3, FirstFailedAt: now.Add(-time.Second), LastFailedAt: now, Topic: "orders", Handler: "ship",
		Reason: fmt.Sprintf("dial 10.0.0.%d: connection refused", n%250), ErrorType: "*net.OpError", DeadReason: retry.DeadReasonExhausted,
	}
}

// send publishes messages, and waits until the broker has confirmed them.
func send(t testing.TB, channel *amqp091.Channel, exchange, key string, messages ...amqp091.Publishing) {
	t.Helper()
	require.NoError(t, channel.Confirm(false))
	var confirms []*amqp091.DeferredConfirmation
	for _, m := range messages {
		m.DeliveryMode = amqp091.Persistent
		confirm, err := channel.PublishWithDeferredConfirm(exchange, key, true, false, m)
		require.NoError(t, err)
		confirms = append(confirms, confirm)
	}
	for _, confirm := range confirms {
		require.True(t, confirm.Wait())
	}
}

// fill publishes dead letters through the library's exchange, and returns their ids.
func (q *queues) fill(n int, make func(i int, id string) amqp091.Publishing) (ids []string) {
	q.t.Helper()
	before := q.count(q.dead)
	var all []amqp091.Publishing
	for i := range n {
		ids = append(ids, watermill.NewUUID())
		all = append(all, make(i, ids[i]))
	}
	send(q.t, channelOf(q.t), q.prefix, "dead."+q.work, all...)
	q.await(q.dead, before+n)
	return ids
}

// runApp runs an app until it is stopped, or the test ends.
func runApp(t testing.TB, c config.Config, add func(retry.Connection, *message.Router)) (rabbit retry.Connection, stop func()) {
	t.Helper()
	rabbit, err := config.Connect(c, nil)
	require.NoError(t, err)
	router := message.NewDefaultRouter(watermill.NopLogger{})
	add(rabbit, router)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(t.Context()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("the app does not start")
	}
	stop = sync.OnceFunc(func() { _, _ = router.Close(), rabbit.Close() })
	t.Cleanup(stop)
	return rabbit, stop
}

func (q *queues) timeouts(n int) []string {
	return q.fill(n, func(i int, id string) amqp091.Publishing {
		return letter(id, timeout(i), fmt.Appendf(nil, `{"n":%d}`, i))
	})
}

// count returns how many messages of a queue can be delivered.
func (q *queues) count(queue string) int {
	q.t.Helper()
	state, err := q.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(q.t, err)
	return state.Messages
}

// await waits until a queue has so many messages.
func (q *queues) await(queue string, n int) {
	q.t.Helper()
	require.Eventually(q.t, func() bool { return q.count(queue) == n }, patience, 20*time.Millisecond, "%s must have %d messages", queue, n)
}

// take removes all messages of a queue and returns how often each id was there.
func (q *queues) take(queue string) (map[string]int, []amqp091.Delivery) {
	q.t.Helper()
	channel, err := connect(q.t).Channel()
	require.NoError(q.t, err)
	defer func() { _ = channel.Close() }()
	left := q.count(queue)
	deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
	require.NoError(q.t, err)
	ids := map[string]int{}
	var all []amqp091.Delivery
	for timeout := time.After(patience); len(all) < left; {
		select {
		case d := <-deliveries:
			id, _ := d.Headers[uuidHeader].(string)
			ids[id]++
			all = append(all, d)
		case <-timeout:
			require.Fail(q.t, "the messages do not arrive", "%d of %d in %s", len(all), left, queue)
		}
	}
	return ids, all
}
