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
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestBlockedPublishing holds messages of at most half of the concurrency. Then the handler is paused: the others stay in the queue.
// Not parallel: an alarm blocks all publishers of this broker.
func TestBlockedPublishing(t *testing.T) {
	for _, wire := range wires {
		t.Run(wire.name, func(t *testing.T) {
			const messages, concurrency = 100, 16
			began := make(chan struct{})
			processed := testapp.NewLedger()
			a := start(t, plan{schedule: backoff.Schedule{short, middle}, concurrency: concurrency, handle: func(msg *message.Message) error {
				<-began
				if msg.UUID == poke {
					return nil
				}
				if _, retried := retry.ReadRecord(msg.Metadata); !retried {
					return errDown
				}
				processed.Add(msg.UUID)
				return nil
			}}, wire.add)
			a.send(messages)
			end := broker.Alarm(t)
			others := messages - concurrency + a.block() // in the queue
			close(began)

			holding := concurrency // of the parts: each handler has one message
			if a.connection != nil {
				holding /= 2
				others += holding
				a.wait(func() bool {
					s := a.connection.Health().Subscriptions[0]
					return s.Holding == holding && s.InFlight == holding && !s.Consuming && fmt.Sprint(s.Paused) == "[holding]"
				}, "half of the concurrency holds, and the handler is paused")
				assert.NoError(t, a.connection.Health().Ready(), "the other instances of the app are no better")
				assert.Len(t, a.outcomes(retry.GivenBack), concurrency-holding, "those that were in flight, too")
			}
			a.wait(func() bool { return len(a.outcomes(retry.Held)) == concurrency }, "the messages in flight are held")
			a.wait(func() bool { return testapp.Depth(t, a.queue) == others }, "all others are ready, for other consumers")
			assert.Zero(t, processed.Len())

			end()
			processed.Wait(t, messages, soon)
			a.done()
			assert.Empty(t, processed.Twice())
			held := map[string]int{}
			for _, e := range a.outcomes(retry.Held) {
				held[e.MessageUUID]++
				assert.ErrorIs(t, e.Err, publish.ErrBlocked)
			}
			assert.Len(t, held, concurrency)
			for id, events := range held {
				assert.Equal(t, 1, events, id)
			}
			if a.connection != nil {
				a.wait(func() bool {
					s := a.connection.Health().Subscriptions[0]
					return s.Holding == 0 && s.Consuming && len(s.Paused) == 0
				}, "the handler goes on")
			}
		})
	}
}

// poke is the UUID of the messages that show that a connection is blocked. Their outcomes do not count.
const poke = "poke"

// block waits until the connection of the copies is blocked, and returns how many messages it has published until then.
func (a *app) block() (published int) {
	a.t.Helper()
	a.wait(func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := a.publish(message.NewMessageWithContext(ctx, poke, nil))
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
	onBoth(t, func(t *testing.T, start func(plan) *app) {
		const messages = 5
		proxy, uri := broker.Proxy(t)
		began := make(chan struct{})
		a := start(plan{
			schedule: backoff.Schedule{time.Hour, 2 * time.Hour}, concurrency: 8, publishing: uri,
			policy: func(p *retry.Policy) { p.PublishTimeout = time.Second },
			handle: func(*message.Message) error { <-began; return errDown },
		})
		loseConfirms(t, proxy)
		a.send(messages)
		close(began)
		a.wait(func() bool { return len(a.outcomes(retry.Held)) == messages }, "the messages are held")
		first := a.tierQueue(time.Hour)
		a.wait(func() bool { return testapp.Depth(t, first) == messages }, "their copies are on the tier")
		for _, line := range a.log.Lines("holding the message") {
			next := regexp.MustCompile(`next_try_in:(\S+?)[ \]]`).FindStringSubmatch(line)
			require.NotNil(t, next, line)
			pause, err := time.ParseDuration(next[1])
			require.NoError(t, err)
			assert.Greater(t, pause, 50*time.Second, line)
		}
		require.NoError(t, proxy.Toxics.RemoveToxic(context.Background(), "confirms"))
		a.stop()

		assert.Len(t, a.outcomes(retry.Held), messages, "once each")
		copies, left := testapp.NewLedger(), testapp.NewLedger()
		for _, d := range testapp.Take(t, first, messages) {
			copies.Add(d.Headers["_watermill_message_uuid"].(string))
		}
		for _, d := range testapp.Take(t, a.queue, messages) {
			left.Add(d.Headers["_watermill_message_uuid"].(string))
		}
		assert.Equal(t, messages, copies.Len())
		assert.Equal(t, messages, left.Len(), "a shutdown gives the messages back")
		assert.Zero(t, testapp.Depth(t, a.tierQueue(2*time.Hour)))
	})
}

// loseConfirms drops what the broker sends.
func loseConfirms(t testing.TB, proxy *toxiproxy.Proxy) {
	t.Helper()
	_, err := proxy.Toxics.AddToxicJson(strings.NewReader(
		`{"name":"confirms","type":"timeout","stream":"downstream","toxicity":1,"attributes":{"timeout":0}}`))
	require.NoError(t, err)
}
