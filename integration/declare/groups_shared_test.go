package declare_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// What the work queues of a group share is declared once for each connection, also when all of them declare at the same
// time after a reconnect.
func TestAGroupIsDeclaredOnceForEachConnection(t *testing.T) {
	t.Parallel()
	const queues = 16
	proxy, uri := broker.Proxy(t)
	a := connect(t, inGroup, allClassic, func(b *config.Config) { b.AMQP.Connection.AmqpURI = uri })
	for i := range queues {
		a.handle(a.Queue(fmt.Sprint("orders", i)), 1, testapp.NewLedger())
	}
	a.Run()
	declaredOnce := func() {
		t.Helper()
		wire := a.wire.consuming()
		assert.Equal(t, queues, wire.count("basic.consume"))
		assert.LessOrEqual(t, wire.count("channel.open"), 3*queues+1,
			"for each queue one that declares, one that consumes and one that binds, and one for the later checks")
		assert.LessOrEqual(t, wire.count("basic.qos"), 2*queues, "RabbitMQ 3.10 needs a second one")
		for _, name := range []string{a.groupExchange() + ".100ms", a.groupExchange() + ".300ms", a.Name + ".orphans"} {
			assert.Equal(t, 1, wire.count("queue.declare "+name), name)
		}
		for _, name := range []string{a.Name, a.Name + ".return.any", a.groupExchange(), a.groupReturn()} {
			assert.Equal(t, 1, wire.count("exchange.declare "+name), name)
		}
	}
	declaredOnce()
	first := a.wire.consuming()
	proxy.Stop()
	require.NoError(t, proxy.Start())
	broker.Eventually(t, soon, func() bool {
		return a.Health().Ready() == nil && a.wire.consuming() != first && a.wire.consuming().count("basic.consume") == queues
	}, "all consume over the next connection")
	declaredOnce()
}

// An exchange that another work queue has declared, and that an operator has deleted since, is declared again for a
// further work queue.
func TestASharedExchangeIsDeletedBeforeAFurtherSubscription(t *testing.T) {
	t.Parallel()
	for name, exchange := range map[string]func(*app) string{
		"exchange of copies and dead letters": func(a *app) string { return a.Name },
		"exchange of the group's copies":      func(a *app) string { return a.groupExchange() },
		"return exchange of the group":        func(a *app) string { return a.groupReturn() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := connect(t, inGroup)
			a.handle(a.Queue("orders"), 1, testapp.NewLedger())
			a.Run()
			require.NoError(t, broker.Channel(t).ExchangeDelete(exchange(a), false, false))
			s, err := a.Subscriber("further")
			require.NoError(t, err)
			_, err = s.Subscribe(t.Context(), a.Queue("mails"))
			require.NoError(t, err)
		})
	}
}
