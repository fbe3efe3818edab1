package publisher_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// publishUntil publishes messages over a publisher of its own, until the function that it returns is called. That function
// asserts that all were confirmed, and are in the queue.
func publishUntil(t *testing.T, connection *publisher.Connection) (stop func()) {
	t.Helper()
	const callers = 8
	topology := declare(t, nil)
	p := on(connection, settings{Exchange: topology.exchange})
	var confirmed [callers]int
	done := make(chan struct{})
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if !assert.NoError(t, p.Publish(topology.queue, newMessage(fmt.Sprint(caller, "-", confirmed[caller])))) {
					return
				}
				confirmed[caller]++
			}
		})
	}
	return func() {
		close(done)
		group.Wait()
		content, total := topology.content(t), 0
		for caller, count := range confirmed {
			total += count
			for n := range count {
				// A message that was in flight when the channel was closed may be in the queue twice.
				assert.NotZero(t, content[fmt.Sprint(caller, "-", n)])
			}
		}
		assert.NotZero(t, total)
		assert.Len(t, content, total)
	}
}

// TestExchangesAreDeclared once on each connection, and again where they were deleted, which harms no other message.
func TestExchangesAreDeclared(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	proxy, uri := broker.Proxy(t)
	connection := connect(t, publisher.Config{Wire: wire.Config{URI: uri}})
	declarations, bindings := connection.NewDeclarations("exchanges"), connection.NewDeclarations("bindings")
	calls := 0 // they do not overlap
	again := func(channel *amqp091.Channel, exchange string) error {
		calls++
		assert.Equal(t, topology.exchange, exchange)
		return topology.declareExchange(channel)
	}
	publishAll := func() {
		t.Helper()
		var group sync.WaitGroup
		for _, msg := range newMessages(50) {
			group.Go(func() {
				m := publisher.Message{Context: t.Context(), Exchange: topology.exchange, RoutingKey: topology.queue,
					UUID: msg.UUID, Publishing: marshal(msg)}
				if !assert.NoError(t, declarations.Exchange(&m, again)) {
					return
				}
				err := connection.SendOne(m)
				if publisher.NoExchange(err) && assert.NoError(t, declarations.ExchangeAgain(&m, err, again)) {
					err = connection.SendOne(m)
				}
				if errors.Is(err, publish.ErrUnroutable) { // the binding was deleted with the exchange
					bind := func(channel *amqp091.Channel) error { return topology.declare(channel, nil) }
					if assert.NoError(t, bindings.Again(&m, err, bind)) {
						err = connection.SendOne(m)
					}
				}
				assert.NoError(t, err)
			})
		}
		group.Wait()
		content := topology.content(t)
		for _, msg := range newMessages(50) {
			assert.NotZero(t, content[msg.UUID])
		}
		assert.Len(t, content, 50)
	}
	publishAll()
	publishAll()
	require.Equal(t, 1, calls)

	stop := publishUntil(t, connection)
	require.NoError(t, broker.Channel(t).ExchangeDelete(topology.exchange, false, false))
	publishAll()
	stop()
	require.Greater(t, calls, 1)

	proxy.Stop()
	broker.Eventually(t, soon, func() bool { return !connection.Health().Connected }, "the connection is lost")
	require.NoError(t, proxy.Start())
	broker.Eventually(t, soon, func() bool { return connection.Health().Connected }, "it reconnects")
	before := calls
	publishAll()
	require.Equal(t, before+1, calls)
}
