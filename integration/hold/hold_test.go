// Package hold_test has apps whose copies cannot be published, on a broker.
package hold_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

const soon = 60 * time.Second // much longer than any of it takes

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, broker.LeaksOfProxies()...) }

// An app is one handler with retries.
type app struct {
	*testapp.App
	t     testing.TB
	queue string
}

// TestAloneBlockedPublishing holds messages of at most half of the concurrency. Then the handler is paused: the others stay
// in the queue. Calls that fail before the first message is held let others follow, up to the prefetch. Not parallel: an
// alarm blocks all publishers of this broker.
func TestAloneBlockedPublishing(t *testing.T) {
	const messages, concurrency, prefetch = 100, 16, 32
	began := make(chan struct{})
	processed := testapp.NewLedger()
	a := &app{App: testapp.New(t), t: t}
	a.queue = a.Queue("orders")
	a.Handle(a.queue, concurrency, func(msg *message.Message) error {
		<-began
		if strings.HasPrefix(msg.UUID, "poke") {
			return nil
		}
		return processed.HandleRetries(msg)
	})
	a.Run()
	testapp.Send(t, "", a.queue, testapp.Orders(messages)...)
	end := broker.Alarm(t)
	others := messages - concurrency + a.block() // in the queue
	close(began)

	const holding = concurrency / 2
	others += holding
	testapp.Eventually(t, func() bool {
		s := a.Health().Subscriptions[0]
		return s.Holding == holding && s.InFlight == holding && !s.Consuming && fmt.Sprint(s.Paused) == "[holding]"
	}, "half of the concurrency holds, and the handler is paused")
	assert.NoError(t, a.Health().Ready(), "the other instances of the app are no better")
	inFlight := len(a.Events(retry.GivenBack)) + holding
	assert.GreaterOrEqual(t, inFlight, concurrency, "those that were in flight are given back, too")
	assert.LessOrEqual(t, inFlight, prefetch)
	testapp.Eventually(t, func() bool { return len(a.Events(retry.Held)) == inFlight },
		"the messages in flight are held")
	testapp.Eventually(t, func() bool { return testapp.Depth(t, a.queue) == others },
		"all others are ready, for other consumers")
	assert.Zero(t, processed.Len())

	end()
	processed.Wait(t, messages, soon)
	a.Settle(a.queue)
	assert.Empty(t, processed.Twice())
	held := map[string]int{}
	for _, e := range a.Events(retry.Held) {
		held[e.MessageUUID]++
		assert.ErrorIs(t, e.Err, publish.ErrBlocked)
	}
	assert.Len(t, held, inFlight)
	for id, events := range held {
		assert.Equal(t, 1, events, id)
	}
	testapp.Eventually(t, func() bool {
		s := a.Health().Subscriptions[0]
		return s.Holding == 0 && s.Consuming && len(s.Paused) == 0
	}, "the handler goes on")
}

// block waits until the connection of the copies is blocked, and returns how many messages it has published until then.
func (a *app) block() (published int) {
	a.t.Helper()
	testapp.Eventually(a.t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := a.Publisher().Publish(a.queue, message.NewMessageWithContext(ctx, "poke", nil))
		if err == nil {
			published++
		}
		return errors.Is(err, publish.ErrBlocked)
	}, "the connection is blocked")
	return published
}

// TestCloseWaitsForConfirms: the messages whose calls have ended are acknowledged before Close returns.
func TestCloseWaitsForConfirms(t *testing.T) {
	t.Parallel()
	const messages, concurrency, inFlight = 40, 4, 8
	proxy, _ := broker.Proxy(t)
	c := testapp.Config(t)
	c.Policy.PublishTimeout = 5 * time.Minute
	direct := c
	opened := 0
	c.AMQP.Connection.AmqpConfig = &amqp091.Config{
		Heartbeat: time.Minute,
		Dial: func(network, address string) (net.Conn, error) {
			if opened++; opened > 1 { // Connect opens the connection for consuming first
				address = proxy.Listen
			}
			return amqp091.DefaultDial(30*time.Second)(network, address)
		},
	}
	first, processed := testapp.Connect(t, c), testapp.NewLedger()
	queue := first.Queue("orders")
	first.Handle(queue, concurrency, processed.HandleRetries)
	first.Run()
	_, err := proxy.Toxics.AddToxicJson(strings.NewReader(
		`{"name":"late","type":"latency","stream":"downstream","toxicity":1,"attributes":{"latency":3600000}}`))
	require.NoError(t, err)
	confirm := sync.OnceFunc(func() { require.NoError(t, proxy.Toxics.RemoveToxic(context.Background(), "late")) })
	t.Cleanup(confirm)
	testapp.Send(t, "", queue, testapp.Orders(messages)...)
	testapp.Eventually(t, func() bool {
		h := first.Health().Subscriptions[0]
		return h.Calls == 0 && h.InFlight == inFlight
	}, "the copies wait for their confirms")
	closed := make(chan error, 1)
	go func() { closed <- first.Close() }()
	testapp.Eventually(t, func() bool { _, err := first.Subscriber("late"); return err != nil }, "Close has begun")
	assert.Empty(t, closed)
	confirm()
	require.NoError(t, broker.Receive(t, closed, "Close returns"))
	assert.Len(t, first.Events(retry.Retried), inFlight, "each copy is confirmed")

	second := testapp.Connect(t, direct)
	second.Handle(queue, concurrency, processed.HandleRetries)
	second.Run()
	processed.Wait(t, messages, soon)
	assert.Empty(t, processed.Twice())
	retried := testapp.NewLedger()
	for _, e := range append(first.Events(retry.Retried), second.Events(retry.Retried)...) {
		retried.Add(e.MessageUUID)
	}
	assert.Equal(t, messages, retried.Len())
	assert.Empty(t, retried.Twice(), "no message was delivered again after its copy")
}
