package order_test

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestADeposedProcessMovesNothing that the broker has taken for lost, and that has not noticed: a message that it moves
// once more would come behind newer ones.
func TestADeposedProcessMovesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	plain := w.config
	moving, uri := broker.Proxy(t)
	others, _ := broker.Proxy(t)
	user := broker.User(t, ".*", ".*", ".*")
	w.config.AMQP.Connection.AmqpURI = proxied(t, broker.WithUser(t, user, user), uri)
	var opened atomic.Int64
	w.config.AMQP.Connection.AmqpConfig = &amqp091.Config{
		Heartbeat: 2 * time.Second,
		Dial: func(network, address string) (net.Conn, error) {
			if opened.Add(1) < 3 { // those that consume and publish
				address = others.Listen
			}
			return amqp091.DefaultDial(30*time.Second)(network, address)
		},
	}
	options := retry.Options{Order: retry.Order{Partitions: 1}}
	deposed := w.start(options, w.sink.handle)
	mover := moverOf(t, user) // while it is alive: the broker lists a connection some seconds after its start
	toxic(t, others, `{"name":"slow","type":"latency","stream":"downstream","attributes":{"latency":100}}`)
	w.config = plain
	w.start(options, w.sink.handle)
	all := messages(1, 110, never)
	send := func(from, to int) {
		for _, msg := range all[from:to] {
			testapp.Send(t, "", w.queue, published(msg))
		}
	}
	toxic(t, moving, `{"name":"slow","type":"latency","stream":"downstream","attributes":{"latency":100}}`)
	send(0, 100)
	testapp.Eventually(t, func() bool { return w.sink.count() > 2 }, "some are moved")
	toxic(t, moving, `{"name":"up","type":"timeout","stream":"upstream","attributes":{"timeout":0}}`)
	toxic(t, moving, `{"name":"down","type":"timeout","stream":"downstream","attributes":{"timeout":0}}`)
	closeConnection(t, mover)
	testapp.Eventually(t, func() bool { return w.sink.count() == 100 }, "the other process moves them")
	send(100, 105)
	testapp.Eventually(t, func() bool { return deposed.Log.Count("Connection lost") > 0 }, "it has noticed")
	send(105, 110)
	testapp.Eventually(t, func() bool { return w.sink.count() == 110 }, "all are handled")
	w.sink.inOrder(t)
}

// TestMessagesAreMovedWhileTheAppCannotPublish: the connection that publishes is another one.
func TestMessagesAreMovedWhileTheAppCannotPublish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	publishing, _ := broker.Proxy(t)
	var opened atomic.Int64
	w.config.AMQP.Connection.AmqpConfig = &amqp091.Config{
		Dial: func(network, address string) (net.Conn, error) {
			if n := opened.Add(1); n == 2 || n > 3 { // the third one moves
				address = publishing.Listen
			}
			return amqp091.DefaultDial(30*time.Second)(network, address)
		},
	}
	a := w.start(retry.Options{}, w.sink.handle)
	publishing.Stop()
	testapp.Eventually(t, func() bool { return a.Log.Count("Connection lost") == 1 }, "it has noticed")
	for _, msg := range messages(10, 10, never) {
		testapp.Send(t, "", w.queue, published(msg))
	}
	testapp.Eventually(t, func() bool { return w.sink.count() == 100 }, "all are handled")
	w.sink.inOrder(t)
	require.ErrorIs(t, a.Publisher().Publish(w.queue, messages(1, 1, never)...), publish.ErrNotConnected)
	require.Zero(t, a.Log.Count("cannot be moved"))
}

// TestAPartitionWithoutABinding: an app with VerifyOnly cannot see that it is missing. What can be moved is moved
// once.
func TestAPartitionWithoutABinding(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(retry.Options{}, w.sink.handle).stop()
	partition, exchange := w.queue+".order.0", w.queue+".order"
	require.NoError(t, broker.Channel(t).QueueUnbind(partition, "0", exchange, nil))
	w.config.VerifyOnly = true
	handled := testapp.NewLedger()
	a := w.start(retry.Options{}, func(msg *message.Message) error {
		handled.Add(msg.UUID)
		return nil
	})
	all, routed := messages(200, 1, never), map[string]int{}
	for _, msg := range all {
		if naming.PartitionOf(keyOf(msg), 4) != 0 {
			routed[msg.UUID] = 1
		}
		testapp.Send(t, "", w.queue, published(msg))
	}
	testapp.Eventually(t, func() bool { return handled.Len() == len(routed) }, "those of the other partitions are handled")
	named := func() int {
		return a.Log.Count(fmt.Sprintf("exchange %q has no binding with the routing key %q", exchange, "0"))
	}
	before := named()
	testapp.Eventually(t, func() bool { return named() > before }, "it is tried again, and the missing binding is named")
	require.NoError(t, broker.Channel(t).QueueBind(partition, "0", exchange, false, nil))
	testapp.Eventually(t, func() bool { return handled.Len() == len(all) }, "the others follow")
	calls := handled.Counts()
	maps.DeleteFunc(calls, func(uuid string, _ int) bool { return routed[uuid] == 0 })
	require.Equal(t, routed, calls, "the calls of each message of the other partitions")
}

// proxied returns an address with the host of another one.
func proxied(t testing.TB, uri, host string) string {
	t.Helper()
	parsed, err := url.Parse(uri)
	require.NoError(t, err)
	proxy, err := url.Parse(host)
	require.NoError(t, err)
	parsed.Host = proxy.Host
	return parsed.String()
}

func toxic(t testing.TB, proxy *toxiproxy.Proxy, text string) {
	t.Helper()
	_, err := proxy.Toxics.AddToxicJson(strings.NewReader(text))
	require.NoError(t, err)
}

// moverOf is the name of the connection over which a user moves messages.
func moverOf(t testing.TB, user string) string {
	t.Helper()
	client := broker.Management(t)
	var name string
	testapp.Eventually(t, func() bool {
		connections, err := client.ListConnections()
		require.NoError(t, err)
		for _, c := range connections {
			if c.User == user && c.ClientProperties["connection_name"] == "watermill-retry mover" {
				name = c.Name
			}
		}
		return name != ""
	}, "the broker lists the connection")
	return name
}

// closeConnection makes the broker close a connection, where it has not taken it for lost already.
func closeConnection(t testing.TB, name string) {
	t.Helper()
	answer, err := broker.Management(t).CloseConnection(name)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
}
