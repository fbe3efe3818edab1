package hold_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// keepConfirms keeps back what the broker sends, until release.
func keepConfirms(t testing.TB, proxy *toxiproxy.Proxy) (release func()) {
	t.Helper()
	_, err := proxy.Toxics.AddToxicJson(strings.NewReader(
		`{"name":"late","type":"latency","stream":"downstream","toxicity":1,"attributes":{"latency":3600000}}`))
	require.NoError(t, err)
	return sync.OnceFunc(func() { require.NoError(t, proxy.Toxics.RemoveToxic(context.Background(), "late")) })
}

// unconfirmed is an app whose messages wait for confirms: of their copies, or of what their handler has produced.
type unconfirmed struct {
	*testapp.App
	config    config.Config
	queue     string
	produced  string          // the queue of what the handler produces; empty: it fails
	entered   *testapp.Ledger // calls, by message
	processed *testapp.Ledger
	most      atomic.Int64 // calls at the same time
	proceed   func()       // ends the first calls
	confirm   func()
}

const unconfirmedMessages = 40

// withoutConfirms starts an app whose handler fails once, or produces a message, after proceed.
func withoutConfirms(t *testing.T, produces bool, options retry.Options) *unconfirmed {
	t.Helper()
	proxy, uri := broker.Proxy(t)
	c := testapp.Config(t)
	throughProxy(t, &c, uri)
	c.AMQP.Connection.AmqpConfig.Heartbeat = time.Minute
	c.Policy.PublishTimeout = 5 * time.Minute
	a := &unconfirmed{
		App: testapp.Connect(t, c), config: c, queue: "orders_" + c.Prefix,
		entered: testapp.NewLedger(), processed: testapp.NewLedger(),
	}
	var calls atomic.Int64
	began := make(chan struct{})
	handle := func(msg *message.Message) ([]*message.Message, error) {
		defer calls.Add(-1)
		for now := calls.Add(1); ; {
			if most := a.most.Load(); now <= most || a.most.CompareAndSwap(most, now) {
				break
			}
		}
		a.entered.Add(msg.UUID)
		<-began
		if !produces && testapp.Failures(msg) == 0 {
			return nil, errDown
		}
		a.processed.Add(msg.UUID)
		if !produces {
			return nil, nil
		}
		return []*message.Message{message.NewMessage(msg.UUID, nil)}, nil
	}
	if produces {
		invoices, err := a.Subscriber("invoices")
		require.NoError(t, err)
		a.produced = "invoices_" + c.Prefix
		require.NoError(t, invoices.(message.SubscribeInitializer).SubscribeInitialize(a.produced))
		a.AddHandler(a.Router, "billing", a.queue, a.produced, handle, options)
	} else {
		a.AddConsumerHandler(a.Router, "billing", a.queue, func(msg *message.Message) error {
			_, err := handle(msg)
			return err
		}, options)
	}
	a.Run()
	a.confirm = keepConfirms(t, proxy)
	t.Cleanup(a.confirm)
	a.proceed = sync.OnceFunc(func() { close(began) })
	t.Cleanup(a.proceed)
	testapp.Send(t, "", a.queue, testapp.Orders(unconfirmedMessages)...)
	return a
}

func (a *unconfirmed) health() retry.SubscriptionHealth { return a.Health().Subscriptions[0] }

// waitFor waits until so many messages are in flight, with so many calls among them. Nothing else moves then.
func (a *unconfirmed) waitFor(t *testing.T, calls, inFlight int) {
	t.Helper()
	testapp.Eventually(t, func() bool {
		h := a.health()
		return h.Calls == calls && h.InFlight == inFlight
	}, "%d in flight, %d of them with a place", inFlight, calls)
	a.entered.Wait(t, inFlight, soon)
}

// published is how many copies or produced messages the broker has, while so many messages of the queue were fetched.
func (a *unconfirmed) published(t *testing.T, fetched int) int {
	t.Helper()
	if a.produced != "" {
		return testapp.Depth(t, a.produced)
	}
	back := testapp.Depth(t, a.queue) - (unconfirmedMessages - fetched)
	return back + testapp.Depth(t, a.TierQueue(a.queue, a.config.Policy.Schedule[0]))
}

// TestPlacesWhileTheBrokerDoesNotConfirm: a message that waits for a confirm does not take the place of a call, except
// where there is an order. As many as Prefetch wait.
func TestPlacesWhileTheBrokerDoesNotConfirm(t *testing.T) {
	t.Parallel()
	keyOf := func(msg *message.Message) string { return msg.UUID }
	for name, row := range map[string]struct {
		options  retry.Options
		produces bool
		calls    int // places that are taken while messages wait for confirms
		waiting  int
		fetched  int
	}{
		"copies":                  {retry.Options{Concurrency: 4}, false, 0, 8, 8},
		"produced messages":       {retry.Options{Concurrency: 4}, true, 0, 8, 8},
		"a prefetch":              {retry.Options{Concurrency: 4, Prefetch: 11}, false, 0, 11, 11},
		"no prefetch ahead":       {retry.Options{Concurrency: 4, Prefetch: 4}, false, 4, 4, 4},
		"one at a time":           {retry.Options{Concurrency: 1}, false, 1, 1, 1},
		"one at a time, produced": {retry.Options{Concurrency: 1}, true, 1, 1, 1},
		"an order key":            {retry.Options{Concurrency: 4, Order: retry.Order{Key: keyOf}}, false, 4, 4, unconfirmedMessages},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := withoutConfirms(t, row.produces, row.options)
			a.waitFor(t, row.options.Concurrency, row.options.Concurrency)
			testapp.Eventually(t, func() bool { return testapp.Depth(t, a.queue) == unconfirmedMessages-row.fetched },
				"the broker has sent all of the prefetch")
			a.proceed()
			testapp.Eventually(t, func() bool { return a.published(t, row.fetched) == row.waiting },
				"the broker has what is not confirmed")
			a.waitFor(t, row.calls, row.waiting)
			assert.Equal(t, row.waiting, a.entered.Len(), "and no more")
			assert.Empty(t, a.Events(retry.Retried), "nothing is confirmed")
			a.confirm()
			a.processed.Wait(t, unconfirmedMessages, soon)
			assert.Empty(t, a.processed.Twice())
			assert.LessOrEqual(t, int(a.most.Load()), row.options.Concurrency, "calls at the same time")
		})
	}
}

// TestCloseWaitsForConfirms: the messages whose calls have ended are acknowledged before Close returns.
func TestCloseWaitsForConfirms(t *testing.T) {
	t.Parallel()
	a := withoutConfirms(t, false, retry.Options{Concurrency: 4})
	a.proceed()
	a.waitFor(t, 0, 8)
	closed := make(chan error, 1)
	go func() { closed <- a.Close() }()
	testapp.Eventually(t, func() bool { _, err := a.Subscriber("late"); return err != nil }, "Close has begun")
	assert.Empty(t, closed)
	a.confirm()
	require.NoError(t, broker.Receive(t, closed, "Close returns"))
	assert.Len(t, a.Events(retry.Retried), 8, "each copy is confirmed")

	second := testapp.Connect(t, a.config)
	second.AddConsumerHandler(second.Router, "billing", a.queue, a.processed.HandleRetries)
	second.Run()
	a.processed.Wait(t, unconfirmedMessages, soon)
	assert.Empty(t, a.processed.Twice())
	retried := testapp.NewLedger()
	for _, e := range append(a.Events(retry.Retried), second.Events(retry.Retried)...) {
		retried.Add(e.MessageUUID)
	}
	assert.Equal(t, unconfirmedMessages, retried.Len())
	assert.Empty(t, retried.Twice(), "no message was delivered again after its copy")
}
