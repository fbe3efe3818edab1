package middleware_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// unbound returns the middleware for messages of a subscriber that is not one of this library.
func unbound(t *testing.T, change ...func(*settings)) *breakered {
	b := withBreaker(t, 0, change...)
	b.ctx, b.gate, b.valve = routed, nil, nil
	return b
}

// A message that cannot wait any longer for the end of a pause is given back.
func TestMessageIsGivenBackAfterAWait(t *testing.T) {
	for name, row := range map[string]struct {
		stop bool // the subscription, which has a gate, ends after a minute
		want time.Duration
		err  string
	}{
		"MaxHold is over": {false, 2 * time.Minute, "the handler is paused"},
		"a shutdown":      {true, time.Minute, context.Canceled.Error()},
	} {
		bubble(t, name, func(t *testing.T) {
			b := unbound(t, rule(retry.Pause(time.Hour)), func(c *settings) { c.Policy.MaxHold = 2 * time.Minute }, observing)
			stopping := make(chan struct{})
			bound := &msgctx.Subscription{Stopping: stopping}
			if row.stop {
				bound.Gate = gate.New(1)
			}
			b.ctx = msgctx.NewContext(routed, bound)
			b.outcomes(errDown)
			begin := time.Now()
			if row.stop {
				time.AfterFunc(time.Minute, func() { close(stopping) })
			}
			require.ErrorContains(t, b.handle(notCalled(t)), row.err)
			assert.Equal(t, row.want, time.Since(begin))
			assert.Len(t, b.sent.copies, 1)
			assert.Equal(t, []retry.Outcome{retry.Snoozed, retry.GivenBack}, b.sent.outcomes())
		})
	}
}

func TestSettledMessageDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unbound(t, rule(retry.Pause(time.Hour)))
		b.outcomes(errDown)
		msg := messageOf(each(b.ctx))
		msg.Ack()
		begin := time.Now()
		handles(t, b.retry.Dispatch(succeed), msg)
		assert.Equal(t, begin, time.Now(), "giving it back would lose it")
	})
}

// nameOf makes contexts of handlers as routers do, by way of an origin.
func nameOf(ctx context.Context, i int) context.Context {
	return msgctx.WithOrigin(ctx, topic, fmt.Sprintf("handler-%d", i))
}

// inStep is a context with which goroutines of a bubble go on together, from one use of it to the next.
type inStep struct{ context.Context }

func (c inStep) Value(key any) any {
	time.Sleep(time.Microsecond)
	return c.Context.Value(key)
}

func TestHandlersPauseByThemselves(t *testing.T) {
	for name, bound := range map[string]bool{"gates": true, "no gates": false} {
		bubble(t, name, func(t *testing.T) {
			b := unbound(t)
			of := make([]context.Context, 10)
			for i := range of {
				of[i] = nameOf(routed, i)
				if bound {
					of[i] = msgctx.NewContext(of[i], &msgctx.Subscription{Gate: gate.New(16)})
				}
			}
			var all sync.WaitGroup
			for i, ctx := range of {
				all.Go(func() {
					for range 10 {
						_, _ = b.retry.Dispatch(failing([]error{errDown, nil}[i%2]))(messageOf(inStep{ctx}))
					}
				})
			}
			all.Wait()
			begin := time.Now()
			handles(t, b.retry.Dispatch(succeed), messageOf(of[1]))
			assert.Equal(t, begin, time.Now(), "it does not fail")
			handles(t, b.retry.Dispatch(succeed), messageOf(of[0]))
			assertPause(t, time.Second, time.Since(begin))
			assert.Equal(t, 5, strings.Count(b.sent.logs.String(), "Handler pauses"))
		})
	}
}

// bounded follows the limits of a gate, as the subscriber does.
type bounded struct{ *gate.Places }

func (b bounded) Limit(n int) { b.Set(n) }

// scene is a handler whose subscription has handed out one message.
type scene struct {
	gate    *gate.Gate
	places  *gate.Places
	message *message.Message
}

func newScene(t *testing.T, calls, messages int) scene {
	t.Helper()
	s := scene{gate: gate.New(calls), places: gate.NewPlaces(calls, messages)}
	t.Cleanup(s.gate.Attach(bounded{s.places}))
	own, place := msgctx.Each(msgctx.NewContext(routed, &msgctx.Subscription{Gate: s.gate}))
	require.True(t, s.places.Take(place))
	s.message = messageOf(own)
	return s
}

// exceptions are when a message keeps its place, whatever its handler does.
var exceptions = map[string]struct {
	calls, messages int
	before          func(scene)
}{
	"one at a time":     {1, 1, func(scene) {}},
	"an order":          {4, 4, func(scene) {}},
	"a limit":           {4, 8, func(s scene) { s.gate.Set(gate.Failing, 2) }},
	"a pause":           {4, 8, func(s scene) { s.gate.Set(gate.Operator, 0) }},
	"a message is held": {4, 8, func(s scene) { s.gate.Hold() }},
	"too many are held": {4, 8, func(s scene) { s.gate.Hold(); s.gate.Hold() }},
	"one is set aside":  {4, 8, func(s scene) { s.gate.SetAside() }},
}

const free, taken = 0, 1

// TestThePlaceOfAFailure is free when the copy is published, and not before. That of produced messages is free when the
// router gets them, unless a breaker waits for their publish.
func TestThePlaceOfAFailure(t *testing.T) {
	// at returns how many places are taken when the copy is published, or when the middleware returns without.
	at := func(t *testing.T, s scene, h message.HandlerFunc, change ...func(*settings)) int {
		tiered, sent := setup(t, change...)
		got := -1
		sent.fail = func(int) error { got = s.places.Calls(); return nil }
		_, _ = tiered.Dispatch(func(msg *message.Message) ([]*message.Message, error) {
			assert.Equal(t, taken, s.places.Calls(), "the handler runs")
			return h(msg)
		})(s.message)
		if got < 0 {
			got = s.places.Calls()
		}
		s.message.Ack()
		return got
	}
	breaker := func(c *settings) { c.Policy.Breaker = &retry.Breaker{} }
	fails := failing(errDown)
	for name, row := range map[string]struct {
		want    int
		handler message.HandlerFunc
		change  func(*settings)
	}{
		"a retry":                           {free, fails, nil},
		"a dead letter":                     {free, failing(backoff.Permanent(errDown)), nil},
		"a panic":                           {free, func(*message.Message) ([]*message.Message, error) { panic(errDown) }, nil},
		"under a breaker":                   {free, fails, breaker},
		"a failure that pauses the handler": {taken, fails, func(c *settings) { c.Policy.Breaker = &retry.Breaker{Least: 1} }},
		"a pause of a rule":                 {taken, fails, rule(retry.Pause(time.Second))},
		"discarded":                         {taken, fails, rule(retry.Discard())},
		"given back":                        {taken, fails, rule(retry.GiveBack())},
		"none produced":                     {taken, succeed, nil},
		"two produced":                      {free, producing(2), nil},
		"produced, under a rule":            {free, producing(1), rule(retry.Pause(time.Second))},
		"produced, under a breaker":         {taken, producing(1), breaker},
	} {
		bubble(t, name, func(t *testing.T) {
			assert.Equal(t, row.want, at(t, newScene(t, 4, 8), row.handler, row.change))
		})
	}
	for name, row := range exceptions {
		bubble(t, "not with "+name, func(t *testing.T) {
			for _, h := range []message.HandlerFunc{fails, producing(1)} {
				s := newScene(t, row.calls, row.messages)
				row.before(s)
				assert.Equal(t, taken, at(t, s, h))
			}
		})
	}
	bubble(t, "not where the handler is not called", func(t *testing.T) {
		s := newScene(t, 4, 8)
		s.message.Metadata[recordkey.UnmarshalError] = "no JSON"
		assert.Equal(t, taken, at(t, s, succeed))
	})
}

// The subscriber does not follow the limit, so the middleware does.
func TestAnOperatorsPauseHoldsTheMessagesOfAGate(t *testing.T) {
	for name, breaker := range map[string]*retry.Breaker{"with a breaker": {}, "without one": nil} {
		bubble(t, name, func(t *testing.T) {
			tiered, _ := setup(t, func(c *settings) { c.Policy.Breaker = breaker })
			g := gate.New(0)
			g.Set(gate.Operator, 0)
			time.AfterFunc(5*time.Minute, func() { g.Set(gate.Operator, gate.None) })
			began := time.Now()
			handles(t, tiered.Dispatch(succeed), messageOf(msgctx.NewContext(routed, &msgctx.Subscription{Gate: g})))
			assert.Equal(t, 5*time.Minute, time.Since(began))
			assert.Zero(t, g.Taken(), "it has left its place")
		})
	}
}
