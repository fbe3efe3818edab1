package publisher_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

func connect(t testing.TB, config publisher.Config) *publisher.Connection {
	t.Helper()
	if config.Wire.URI == "" {
		config.Wire.URI = broker.URL(t)
	}
	connection, err := publisher.Open(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })
	return connection
}

func TestPublishersShareOneConnection(t *testing.T) {
	t.Parallel()
	const publishers, callers, each = 8, 8, 50
	name := broker.Name(t, "shared")
	connection := connect(t, publisher.Config{
		Wire: wire.Config{AMQP: &amqp091.Config{Properties: amqp091.Table{"connection_name": name}}}, MaxInFlight: 32,
	})
	topologies := make([]topology, publishers)
	want := make([]map[string]int, publishers)
	var group sync.WaitGroup
	for i := range publishers {
		topologies[i], want[i] = declare(t, nil), map[string]int{}
		p := on(connection, halfConfig{Exchange: topologies[i].exchange})
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
	connection := connect(t, publisher.Config{})
	var topologies [publishers]topology
	var confirmed [publishers][callers]map[string]int
	var total atomic.Int64
	busy := make(chan struct{})
	var group sync.WaitGroup
	for i := range publishers {
		topologies[i] = declare(t, nil)
		p := on(connection, halfConfig{Exchange: topologies[i].exchange})
		for caller := range callers {
			confirmed[i][caller] = map[string]int{}
			group.Go(func() {
				for n := 0; ; n++ {
					uuid := fmt.Sprint(caller, "-", n)
					if err := p.Publish(topologies[i].queue, newMessage(uuid)); err != nil {
						asPublishError(t, err, retry.ErrClosed)
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

func TestNamesThatAreTooLong(t *testing.T) {
	t.Parallel()
	p := declare(t, nil).open(t, nil)
	require.ErrorIs(t, p.Publish(strings.Repeat("x", 256), newMessage("key")), publish.ErrRefused)
	p.config.Exchange = strings.Repeat("x", 256)
	err := p.Publish("key", newMessage("exchange"))
	require.ErrorIs(t, err, publish.ErrRefused)
	assert.ErrorContains(t, err, "256 bytes, at most 255")
}

func TestHealthOfAConnection(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	proxy, uri := broker.Proxy(t)
	connection := connect(t, publisher.Config{Wire: wire.Config{URI: uri}})
	p := on(connection, halfConfig{})
	before := connection.Health()
	require.True(t, before.Connected)
	require.NoError(t, before.LastError)

	proxy.Stop()
	broker.Eventually(t, soon, func() bool { return !connection.Health().Connected }, "the connection is lost")
	away := connection.Health()
	require.Error(t, away.LastError)
	assert.True(t, away.Since.After(before.Since))
	assert.False(t, away.LastErrorAt.IsZero())
	_, err := connection.Channel(t.Context())
	require.ErrorIs(t, err, publish.ErrNotConnected)

	require.NoError(t, proxy.Start())
	broker.Eventually(t, soon, func() bool { return connection.Health().Connected }, "it reconnects")
	after := connection.Health()
	assert.Equal(t, 1, after.Reconnects)
	require.Error(t, after.LastError, "it is kept")
	assert.False(t, after.Since.Before(away.Since))
	require.NoError(t, p.Publish(topology.queue, newMessage("after")))
}

// What closes a channel of the caller's own does not harm the messages in flight.
func TestChannelOfAConnection(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	connection := connect(t, publisher.Config{})
	p := on(connection, halfConfig{})
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
