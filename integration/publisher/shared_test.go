package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
)

func connect(t testing.TB, config publisher.ConnectionConfig) *publisher.Connection {
	t.Helper()
	if config.URI == "" {
		config.URI = broker.URL(t)
	}
	connection, err := publisher.Open(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })
	return connection
}

func on(t testing.TB, connection *publisher.Connection, config publisher.Config) *publisher.Publisher {
	t.Helper()
	p, err := publisher.NewPublisher(connection, config)
	require.NoError(t, err)
	return p
}

func TestPublishersShareOneConnection(t *testing.T) {
	t.Parallel()
	const publishers, callers, each = 8, 8, 50
	name := broker.Name(t, "shared")
	connection := connect(t, publisher.ConnectionConfig{
		AMQP: &amqp091.Config{Properties: amqp091.Table{"connection_name": name}}, MaxInFlight: 32,
	})
	topologies := make([]topology, publishers)
	want := make([]map[string]int, publishers)
	var group sync.WaitGroup
	for i := range publishers {
		topologies[i], want[i] = declare(t, nil), map[string]int{}
		p := on(t, connection, publisher.Config{Exchange: topologies[i].exchange})
		for caller := range callers {
			for n := range each {
				want[i][fmt.Sprint(i, "-", caller, "-", n)] = 1
			}
			group.Go(func() {
				for n := range each {
					if !assert.NoError(t, p.Publish(topologies[i].queue, newMessage(fmt.Sprint(i, "-", caller, "-", n)))) {
						return
					}
				}
			})
		}
	}
	group.Wait()
	for i, topology := range topologies {
		assert.Equal(t, want[i], topology.content(t))
	}
	connections := broker.Ctl(t, "--quiet", "list_connections", "client_properties")
	assert.Equal(t, 1, strings.Count(connections, name), connections)
}

func TestCloseOfASharedConnectionUnderLoad(t *testing.T) {
	t.Parallel()
	const publishers, callers = 4, 16
	connection := connect(t, publisher.ConnectionConfig{})
	closed := on(t, connection, publisher.Config{})
	require.NoError(t, closed.Close())

	var topologies [publishers]topology
	var confirmed [publishers][callers]map[string]int
	var total atomic.Int64
	busy := make(chan struct{})
	var group sync.WaitGroup
	for i := range publishers {
		topologies[i] = declare(t, nil)
		p := on(t, connection, publisher.Config{Exchange: topologies[i].exchange})
		for caller := range callers {
			confirmed[i][caller] = map[string]int{}
			group.Go(func() {
				for n := 0; ; n++ {
					uuid := fmt.Sprint(caller, "-", n)
					if err := p.Publish(topologies[i].queue, newMessage(uuid)); err != nil {
						asPublishError(t, err, publisher.ErrClosed)
						return
					}
					confirmed[i][caller][uuid]++
					if total.Add(1) == 1000 {
						close(busy)
					}
				}
			})
		}
	}
	broker.Receive(t, busy, "1000 messages are confirmed")
	require.NoError(t, connection.Close())
	group.Wait()
	require.NoError(t, connection.Close(), "again")
	for i, topology := range topologies {
		want := map[string]int{}
		for _, uuids := range confirmed[i] {
			for uuid := range uuids {
				want[uuid] = 1
			}
		}
		assert.Equal(t, want, topology.content(t))
	}
}

func TestClosingOnePublisherLeavesTheOthers(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	connection := connect(t, publisher.ConnectionConfig{})
	stays, closes := on(t, connection, publisher.Config{}), on(t, connection, publisher.Config{})
	messages := newMessages(400)
	var group sync.WaitGroup
	for i, msg := range messages {
		if i == len(messages)/2 {
			require.NoError(t, closes.Close())
		}
		group.Go(func() { assert.NoError(t, stays.Publish(topology.queue, msg)) })
	}
	group.Wait()
	asPublishError(t, closes.Publish(topology.queue, newMessage("closed")), publisher.ErrClosed)
	require.Equal(t, once(messages), topology.content(t))
}

func TestRoute(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	wrong := errors.New("no such topic")
	p := on(t, connect(t, publisher.ConnectionConfig{}), publisher.Config{
		Route: func(topic string) (exchange, routingKey string, err error) {
			switch topic {
			case "default":
				return "", topology.queue, nil
			case "own":
				return topology.exchange, topology.queue, nil
			case "nowhere":
				return topology.exchange, "nowhere.at.all", nil
			case "long exchange":
				return strings.Repeat("x", 256), "key", nil
			case "long key":
				return topology.exchange, strings.Repeat("x", 256), nil
			}
			return "", "", wrong
		},
	})
	require.NoError(t, p.Publish("default", newMessage("to the default exchange")))
	require.NoError(t, p.Publish("own", newMessage("to an exchange")))
	unroutable := asPublishError(t, p.Publish("nowhere", newMessage("1")), publisher.ErrUnroutable)
	assert.Equal(t, topology.exchange, unroutable.Exchange)
	assert.Equal(t, "nowhere.at.all", unroutable.RoutingKey)

	// Not through asPublishError: an error shortens a name that is too long.
	require.ErrorIs(t, p.Publish("long exchange", newMessage("2")), publisher.ErrRefused)
	err := p.Publish("long key", newMessage("3"))
	require.ErrorIs(t, err, publisher.ErrRefused)
	assert.Contains(t, err.Error(), "256 bytes, at most 255")
	err = p.Publish("other", newMessage("4"))
	require.ErrorIs(t, err, wrong)
	assert.Equal(t, "other", asPublishError(t, err, publisher.ErrRefused).RoutingKey)
	require.Equal(t, map[string]int{"to the default exchange": 1, "to an exchange": 1}, topology.content(t))
}

func TestHealthOfAConnection(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	proxy, uri := broker.Proxy(t)
	connection := connect(t, publisher.ConnectionConfig{URI: uri})
	p := on(t, connection, publisher.Config{})
	before := connection.Health()
	require.True(t, before.Connected)
	require.NoError(t, before.LastError)
	assert.Regexp(t, regexp.MustCompile(`^[34]\.\d+`), connection.ServerVersion())

	proxy.Stop()
	broker.Eventually(t, soon, func() bool { return !connection.Health().Connected }, "the connection is lost")
	away := connection.Health()
	require.Error(t, away.LastError)
	require.ErrorIs(t, away.Ready(), away.LastError)
	assert.True(t, away.Since.After(before.Since))
	assert.False(t, away.LastErrorAt.IsZero())
	assert.Empty(t, connection.ServerVersion())
	_, err := connection.Channel(t.Context())
	require.ErrorIs(t, err, publisher.ErrNotConnected)

	require.NoError(t, proxy.Start())
	broker.Eventually(t, soon, func() bool { return connection.Health().Connected }, "it reconnects")
	after := connection.Health()
	require.NoError(t, after.Ready())
	require.Error(t, after.LastError, "it is kept")
	assert.False(t, after.Since.Before(away.Since))
	require.NoError(t, p.Publish(topology.queue, newMessage("after")))
}

// What closes a channel of the caller's own does not harm the messages in flight.
func TestChannelOfAConnection(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	connection := connect(t, publisher.ConnectionConfig{})
	p := on(t, connection, publisher.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	messages := newMessages(300)
	var group sync.WaitGroup
	for i, msg := range messages {
		if i%30 == 0 {
			channel, err := connection.Channel(ctx)
			require.NoError(t, err)
			require.Error(t, channel.ExchangeDeclarePassive(topology.exchange+".missing", "topic", true, false, false, false, nil))
			require.True(t, channel.IsClosed())
		}
		group.Go(func() { assert.NoError(t, p.Publish(topology.queue, msg)) })
	}
	group.Wait()
	require.Equal(t, once(messages), topology.content(t))
}
