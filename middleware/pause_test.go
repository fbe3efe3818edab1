package middleware_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/retry"
)

// unbound returns the middleware for messages of a subscriber that is not one of this library.
func unbound(t *testing.T, change ...func(*settings)) *breakered {
	b := withBreaker(t, 0, change...)
	b.ctx, b.gate, b.valve = routed, nil, nil
	return b
}

func TestMessagesWithoutAGateWaitBeforeTheirHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unbound(t)
		b.outcomes(repeat(errDown, 10)...)
		begin := time.Now()
		var running, most, calls atomic.Int64
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() {
				assert.NoError(t, b.handle(func(*message.Message) ([]*message.Message, error) {
					now := running.Add(1)
					for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
					}
					time.Sleep(time.Minute) // the duration of the work
					running.Add(-1)
					calls.Add(1)
					return nil, nil
				}))
			})
		}
		time.Sleep(700 * time.Millisecond)
		assert.Zero(t, running.Load(), "paused")
		time.Sleep(400 * time.Millisecond)
		assert.Equal(t, int64(1), running.Load(), "the probe")
		all.Wait()
		assert.Equal(t, int64(40), calls.Load())
		assert.Less(t, time.Since(begin), 6*time.Minute)
		assert.Len(t, b.sent.copies, 10, "none of them has failed")
	})
}

func TestMessageIsGivenBackAfterAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unbound(t, rule(retry.Pause(time.Hour)), func(c *settings) { c.Policy.MaxHold = 2 * time.Minute }, observing)
		b.ctx = msgctx.NewContext(routed, &msgctx.Subscription{})
		b.outcomes(errDown)
		begin := time.Now()
		require.ErrorContains(t, b.handle(notCalled(t)), "the handler is paused")
		assert.Equal(t, 2*time.Minute, time.Since(begin))
		assert.Len(t, b.sent.copies, 1)
		assert.Equal(t, []retry.Outcome{retry.Snoozed, retry.GivenBack}, b.sent.outcomes())
	})
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

func TestShutdownWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unbound(t, rule(retry.Pause(time.Hour)))
		stopping := make(chan struct{})
		b.ctx = msgctx.NewContext(routed, &msgctx.Subscription{Stopping: stopping, Gate: gate.New(1)})
		b.outcomes(errDown)
		time.AfterFunc(time.Minute, func() { close(stopping) })
		begin := time.Now()
		require.ErrorIs(t, b.handle(notCalled(t)), context.Canceled)
		assert.Equal(t, time.Minute, time.Since(begin))
		assert.Len(t, b.sent.copies, 1)
	})
}

func TestOperatorsPauseHoldsTheProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unbound(t)
		g := gate.New(0)
		b.ctx = msgctx.NewContext(routed, &msgctx.Subscription{Gate: g})
		g.Set(gate.Operator, 0)
		time.AfterFunc(5*time.Minute, func() { g.Set(gate.Operator, gate.None) })
		begin := time.Now()
		b.outcomes(nil)
		assert.Equal(t, 5*time.Minute, time.Since(begin), "a gate without a valve")
	})
}

// nameOf makes contexts of handlers as routers do, by way of an origin.
func nameOf(ctx context.Context, i int) context.Context {
	return msgctx.WithOrigin(ctx, topic, fmt.Sprintf("handler-%d", i))
}

func TestHandlersPauseByThemselves(t *testing.T) {
	for name, bound := range map[string]bool{"gates": true, "no gates": false} {
		bubble(t, name, func(t *testing.T) {
			b := unbound(t)
			contexts := make([]context.Context, 100)
			for i := range contexts {
				contexts[i] = nameOf(routed, i)
				if bound {
					contexts[i] = msgctx.NewContext(contexts[i], &msgctx.Subscription{Gate: gate.New(16)})
				}
			}
			var all sync.WaitGroup
			for i, of := range contexts {
				all.Go(func() {
					for range 10 {
						err := errDown
						if i%2 == 1 {
							err = nil
						}
						_, _ = b.retry.Dispatch(failing(err))(messageOf(of))
					}
				})
			}
			all.Wait()
			for i, of := range contexts {
				begin := time.Now()
				handles(t, b.retry.Dispatch(succeed), messageOf(of))
				if i == 0 {
					assertPause(t, time.Second, time.Since(begin))
				}
				if i%2 == 1 {
					assert.Equal(t, begin, time.Now(), "handler %d does not fail", i)
				}
			}
			assert.Equal(t, 50, strings.Count(b.sent.logs.String(), "Handler pauses"))
		})
	}
}
