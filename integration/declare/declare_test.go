package declare_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// declares are the methods that declare. Passive ones are left out: the checks of bindings and of queues send them, at
// times of their own.
var declares = []string{"queue.declare", "exchange.declare"}

func counts(r *recorder) map[string]int {
	all := map[string]int{}
	for _, method := range declares {
		all[method] = r.count(method)
	}
	return all
}

// TestTheDeadLettersAreBoundLast: a copy whose tier is missing becomes a dead letter, as soon as it can.
func TestTheDeadLettersAreBoundLast(t *testing.T) {
	t.Parallel()
	a := connect(t)
	queue := a.Queue("orders")
	a.handle(queue, 1, testapp.NewLedger())
	a.Run()
	sent := a.wire.consuming()
	assert.Greater(t, sent.at(t, "queue.bind "+queue+".dead to "+a.Name),
		sent.at(t, "queue.bind "+queue+"."+a.Name+".100ms to "+a.Name))
}

func TestHandlersOfOneTopicDeclareOnce(t *testing.T) {
	t.Parallel()
	one := connect(t, allClassic)
	one.handle(one.Queue("orders"), 1, testapp.NewLedger())
	one.Run()
	want := counts(one.wire.consuming())
	require.Positive(t, want["queue.declare"])

	proxy, uri := broker.Proxy(t)
	a := connect(t, allClassic, func(b *config.Config) { b.AMQP.Connection.AmqpURI = uri })
	queue := a.Queue("orders")
	processed := testapp.NewLedger()
	const handlers, further = 16, 8
	a.handle(queue, handlers, processed)
	a.Run()
	var subscribed sync.WaitGroup
	for i := range further { // at the same time
		s, err := a.Subscriber(fmt.Sprint("further ", i))
		require.NoError(t, err)
		subscribed.Go(func() {
			_, err := s.Subscribe(t.Context(), queue)
			assert.NoError(t, err)
		})
	}
	subscribed.Wait()
	assert.Equal(t, handlers+further, a.wire.consuming().count("basic.consume"))
	assert.LessOrEqual(t, a.wire.consuming().count("channel.open"), handlers+further+3,
		"one for each handler, one that declares, and two for the checks of bindings")
	assert.Equal(t, want, counts(a.wire.consuming()))
	for _, name := range []string{queue + "." + a.Name + ".100ms", queue + ".dead", a.Name + ".orphans"} {
		assert.Equal(t, 1, a.wire.consuming().count("queue.declare "+name), name)
	}
	assert.Equal(t, 2, a.wire.dialled(), "the inspection has no connection of its own")

	first := a.wire.consuming()
	proxy.Stop()
	require.NoError(t, proxy.Start())
	broker.Eventually(t, soon, func() bool {
		return a.Health().Ready() == nil && a.wire.consuming() != first &&
			a.wire.consuming().count("basic.consume") == handlers+further
	}, "all consume over the next connection")
	assert.Equal(t, want, counts(a.wire.consuming()), "once for each connection")
}

// TestASharedQueueOfSeveralSchedules: what a later handler adds is declared, without another inspection.
func TestASharedQueueOfSeveralSchedules(t *testing.T) {
	t.Parallel()
	a := connect(t, allClassic)
	queue := a.Queue("orders")
	first, err := a.Subscriber("first")
	require.NoError(t, err)
	_, err = first.Subscribe(t.Context(), queue)
	require.NoError(t, err)
	inspected := a.wire.consuming().count("queue.declare " + queue)
	tier := queue + "." + a.Name + ".7s"
	require.Zero(t, a.wire.consuming().count("queue.declare "+tier))

	later, err := a.Subscriber("later", retry.Options{Policy: &retry.Policy{Schedule: []time.Duration{7 * time.Second}}})
	require.NoError(t, err)
	for range 3 {
		_, err = later.Subscribe(t.Context(), queue)
		require.NoError(t, err)
	}
	assert.Equal(t, 1, a.wire.consuming().count("queue.declare "+tier))
	assert.Equal(t, inspected, a.wire.consuming().count("queue.declare "+queue))
	assert.Equal(t, 2, a.wire.dialled())
}
