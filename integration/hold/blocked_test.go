package hold_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestAloneBlockedPublishing holds messages of at most half of the concurrency. Then the handler is paused: the others stay
// in the queue. Calls that fail before the first message is held let others follow, up to the prefetch. Not parallel: an
// alarm blocks all publishers of this broker.
func TestAloneBlockedPublishing(t *testing.T) {
	const messages, concurrency, prefetch = 100, 16, 32
	began := make(chan struct{})
	processed := testapp.NewLedger()
	a := start(t, plan{schedule: backoff.Schedule{short, middle}, concurrency: concurrency,
		handle: func(msg *message.Message) error {
			<-began
			if strings.HasPrefix(msg.UUID, "poke") {
				return nil
			}
			if _, retried := retry.ReadRecord(msg.Metadata); !retried {
				return errDown
			}
			processed.Add(msg.UUID)
			return nil
		}})
	a.send(messages)
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
	a.done()
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

// TestUnconfirmedCopyIsNotPublishedAgainAtOnce: the broker takes the copies, and its confirms are lost.
func TestUnconfirmedCopyIsNotPublishedAgainAtOnce(t *testing.T) {
	t.Parallel()
	const messages = 5
	proxy, uri := broker.Proxy(t)
	began := make(chan struct{})
	a := start(t, plan{
		schedule: backoff.Schedule{time.Hour, 2 * time.Hour}, concurrency: 8, publishing: uri,
		change: func(c *config.Config) { c.Policy.PublishTimeout = 5 * time.Second },
		handle: func(*message.Message) error { <-began; return errDown },
	})
	loseConfirms(t, proxy)
	a.send(messages)
	close(began)
	testapp.Eventually(t, func() bool { return len(a.Events(retry.Held)) == messages }, "the messages are held")
	first := a.TierQueue(a.queue, time.Hour)
	testapp.Eventually(t, func() bool { return testapp.Depth(t, first) == messages }, "their copies are on the tier")
	for _, line := range a.Log.Lines("holding the message") {
		next := regexp.MustCompile(`next_try_in:(\S+?)[ \]]`).FindStringSubmatch(line)
		require.NotNil(t, next, line)
		pause, err := time.ParseDuration(next[1])
		require.NoError(t, err)
		assert.Greater(t, pause, 50*time.Second, line)
	}
	require.NoError(t, proxy.Toxics.RemoveToxic(context.Background(), "confirms"))
	a.stop()

	assert.Len(t, a.Events(retry.Held), messages, "once each")
	copies, left := testapp.NewLedger(), testapp.NewLedger()
	for _, d := range testapp.Take(t, first, messages) {
		copies.Add(d.Headers["_watermill_message_uuid"].(string))
	}
	for _, d := range testapp.Take(t, a.queue, messages) {
		left.Add(d.Headers["_watermill_message_uuid"].(string))
	}
	assert.Equal(t, messages, copies.Len())
	assert.Equal(t, messages, left.Len(), "a shutdown gives the messages back")
	assert.Zero(t, testapp.Depth(t, a.TierQueue(a.queue, 2*time.Hour)))
}

// loseConfirms drops what the broker sends.
func loseConfirms(t testing.TB, proxy *toxiproxy.Proxy) {
	t.Helper()
	_, err := proxy.Toxics.AddToxicJson(strings.NewReader(
		`{"name":"confirms","type":"timeout","stream":"downstream","toxicity":1,"attributes":{"timeout":0}}`))
	require.NoError(t, err)
}
