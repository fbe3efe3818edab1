package conformance

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// ownSchedule: a handler has a schedule of its own, and another one has that of the connection. The app publishes with
// the connection's publisher.
func ownSchedule(t *testing.T, f *fixture) {
	const messages = 10
	app := f.app(300 * time.Millisecond)
	own := backoff.Schedule{100 * time.Millisecond, 700 * time.Millisecond}
	topics := []string{"t" + f.name + "-0", "t" + f.name + "-1"}
	router, retries := f.connect(app, topics, nil, own...)
	others := newLedger()
	retries.AddConsumerHandler(router, "billing", topics[0], others.failing(1))
	retries.AddConsumerHandler(router, "shipping", topics[1], f.ledger.failing(2),
		retry.Options{Policy: &retry.Policy{Schedule: own}})
	f.launch(router, retries)
	publisher := retries.Publisher()
	f.publishWith(publisher, topics[0], ids(messages)...)
	require.NoError(t, publisher.Close(), "this has no effect")
	f.publishWith(publisher, topics[1], ids(messages)...)
	f.comeBack(messages, 2, own)
	f.ledger = others
	f.comeBack(messages, 1, app.Policy.Schedule)
}

// groups: two consumer groups of one connection get every message, and a retry goes to its group only.
func groups(t *testing.T, f *fixture) {
	const messages = 20
	app := f.app(200 * time.Millisecond)
	topics, groups := f.topics(1), []string{"a" + f.name, "b" + f.name}
	router, retries := f.connect(app, topics, groups)
	shipped := newLedger()
	retries.AddConsumerHandler(router, "shipping", topics[0], shipped.failing(0),
		retry.Options{Group: groups[0], Concurrency: 1})
	retries.AddConsumerHandler(router, "billing", topics[0], f.ledger.failing(1), retry.Options{Group: groups[1]})
	f.launch(router, retries)
	f.publishWith(retries.Publisher(), topics[0], ids(messages)...)
	f.await(messages, 1, patience)
	f.publishWith(retries.Publisher(), topics[0], "last")
	f.zero("foreign", f.foreignTo(shipped, messages+1), "retries came to the other group")
	f.settle()
}

// subscriber: code that adds its handlers by itself subscribes one subscriber to several topics, and the middleware is
// the router's.
func subscriber(t *testing.T, f *fixture) {
	const messages = 10
	app := f.app(200 * time.Millisecond)
	topics := []string{"t" + f.name + "-0", "t" + f.name + "-1"}
	router, retries := f.connect(app, topics, nil)
	router.AddMiddleware(retries.Middleware)
	shared, err := retries.Subscriber("archive")
	require.NoError(t, err)
	for i, topic := range topics {
		router.AddConsumerHandler(handlerName(i), topic, shared, func(msg *message.Message) error {
			one := f.ledger.add(msg)
			called := message.HandlerNameFromCtx(msg.Context())
			assert.Equal(t, topic+" "+handlerName(i), msg.UUID[5:]+" "+called, "the handler of its topic")
			if one.failures == 0 {
				return errDown
			}
			return nil
		})
	}
	f.launch(router, retries)
	for _, topic := range topics {
		for _, id := range ids(messages) {
			f.publishWith(retries.Publisher(), topic, id+topic)
		}
	}
	f.comeBack(2*messages, 1, app.Policy.Schedule)
}

// refusals: options that are wrong, or that the backend does not have, are refused. A closed connection refuses
// handlers.
func refusals(t *testing.T, f *fixture) {
	app := f.app(time.Second)
	topics := f.topics(1)
	router, retries := f.connect(app, topics, nil)
	for name, options := range map[string][]retry.Options{
		"twice":       {{}, {}},
		"schedule":    {{Policy: &retry.Policy{Schedule: backoff.Schedule{1}}}},
		"concurrency": {{Concurrency: -1}},
	} {
		_, err := retries.Subscriber(name, options...)
		require.Error(t, err, name)
	}
	_, err := retries.Subscriber("many", retry.Options{Concurrency: 16})
	require.NoError(t, err)
	_, err = retries.Subscriber("ordered", retry.Options{Order: retry.Order{Key: func(*message.Message) string { return "" }}})
	if f.Expect.Tiers {
		require.NoError(t, err)
	} else {
		require.ErrorContains(t, err, "Order.Key is set: only RabbitMQ has it")
	}
	grouped := app
	grouped.Policy.TierGroup = "shop"
	if !f.Expect.Tiers {
		_, err = f.backend.Connect(grouped)
		require.ErrorContains(t, err, `TierGroup is "shop": only RabbitMQ has it`)
	}
	_, err = retries.Subscriber("one", retry.Options{Concurrency: 1})
	require.NoError(t, err)

	retries.AddConsumerHandler(router, "billing", topics[0], func(*message.Message) error { return nil })
	a := f.launch(router, retries)
	health := retries.Health()
	require.NoError(t, health.Ready())
	assert.True(t, slices.ContainsFunc(health.Subscriptions, func(s retry.SubscriptionHealth) bool {
		return s.Name == "billing" && s.Topic == topics[0] && s.Consuming
	}), "%v", health.Subscriptions)
	a.stop()
	require.NoError(t, retries.Close(), "a second Close")
	_, err = retries.Subscriber("late")
	require.Error(t, err)

	router, retries = f.connect(app, topics, nil)
	retries.AddConsumerHandler(router, "billing", topics[0], func(*message.Message) error { return nil },
		retry.Options{Concurrency: -1})
	require.ErrorContains(t, router.Run(t.Context()), "Concurrency is -1")
}

// concurrency: a handler has 16 retries in flight by default. There are enough messages for each of 16 partitions.
func concurrency(t *testing.T, f *fixture) {
	const inFlight, messages = 16, 320
	app := f.app(200 * time.Millisecond)
	topics := f.topics(1)
	router, retries := f.connect(app, topics, nil)
	var called, most atomic.Int32
	together := make(chan struct{})
	retries.AddConsumerHandler(router, "billing", topics[0], func(msg *message.Message) error {
		if f.ledger.add(msg).failures == 0 {
			return errDown
		}
		now := called.Add(1)
		defer called.Add(-1)
		for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
		}
		if now == inFlight {
			close(together)
		}
		select {
		case <-together:
		case <-time.After(patience):
			t.Error("the handler has fewer messages in flight")
		}
		return nil
	})
	f.launch(router, retries)
	f.publishWith(retries.Publisher(), topics[0], ids(messages)...)
	f.await(messages, 1, 2*patience)
	assert.EqualValues(t, inFlight, most.Load(), "messages in flight")
	f.checkNeverEarly(app.Policy.Schedule)
	f.settle()
}

// paused: a paused handler gets neither messages nor retries, and all of them after Resume. Another handler goes on
// meanwhile.
func paused(t *testing.T, f *fixture) {
	const messages = 10
	app := f.app(200 * time.Millisecond)
	slow := backoff.Constant(500*time.Millisecond, 3)
	topics := []string{"t" + f.name + "-0", "t" + f.name + "-1"}
	router, retries := f.connect(app, topics, nil, slow...)
	var last atomic.Value // the message that was tried last for the first time
	retries.AddConsumerHandler(router, "billing", topics[0], func(msg *message.Message) error {
		if f.ledger.add(msg).failures > 0 {
			return nil
		}
		if len(f.ledger.all()) == messages && last.CompareAndSwap(nil, msg.UUID) {
			assert.NoError(t, retries.Pause("billing"))
		}
		return errDown
	})
	other := *f
	other.ledger = newLedger()
	retries.AddConsumerHandler(router, "shipping", topics[1], other.ledger.failing(len(slow)),
		retry.Options{Policy: &retry.Policy{Schedule: slow}})
	state := func() (state retry.SubscriptionHealth) {
		for _, s := range retries.Health().Subscriptions {
			if s.Name == "billing" {
				state = s
			}
		}
		return state
	}
	// meanwhile waits until the other handler has handled a message, and its retries, which take 1.5 seconds.
	meanwhile := func(id string) {
		t.Helper()
		before := len(other.ledger.all())
		f.publishWith(retries.Publisher(), topics[1], id)
		other.await(before+1, len(slow), patience)
	}
	require.ErrorContains(t, retries.Pause("bill"),
		`no handler is named "bill": the handlers are "billing", "shipping"`)

	require.NoError(t, retries.Pause("billing"))
	f.launch(router, retries)
	f.publishWith(retries.Publisher(), topics[0], ids(messages)...)
	meanwhile("first")
	assert.Empty(t, f.ledger.all(), "paused before the router ran")
	require.NoError(t, retries.Health().Ready(), "a pause is no fault")
	assert.Equal(t, []string{"paused"}, state().Paused)

	require.NoError(t, retries.Resume("billing"))
	assert.Empty(t, state().Paused)
	f.await(messages, 0, patience)
	meanwhile("second")
	assert.Len(t, f.ledger.all()[last.Load().(string)], 1, "its retry waits, too")
	assert.Equal(t, []string{"paused"}, state().Paused)

	require.NoError(t, retries.Resume("billing"))
	f.comeBack(messages, 1, app.Policy.Schedule)
}
