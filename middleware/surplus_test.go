package middleware_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestAtMostHalfOfTheConcurrencyHolds for longer than a reconnect takes: the other messages in flight are given back.
func TestAtMostHalfOfTheConcurrencyHolds(t *testing.T) {
	for name, fails := range map[string]error{"not connected": errNoBroker, "timed out": errUnconfirmed} {
		bubble(t, name, func(t *testing.T) {
			outage, givesBack := 3*time.Minute, 6*time.Second // with the pause before a nack
			if fails != errNoBroker {
				givesBack = time.Minute + time.Second
			}
			handler, began := gate.New(16), time.Now()
			defer handler.Attach(following{})() // as RabbitMQ's subscriber: messages do not wait before the handler
			var mu sync.Mutex
			events := map[retry.Outcome]int{}
			tiered, sent := setup(t, func(c *settings) {
				c.Observers = eventtest.Observers(func(e retry.Event) { mu.Lock(); defer mu.Unlock(); events[e.Outcome]++ })
			})
			sent.fail = until(outage, fails)
			bound := &msgctx.Subscription{Gate: handler, Retry: tiered, Stopping: make(chan struct{})}
			var all sync.WaitGroup
			var back int
			for range 16 {
				all.Go(func() {
					if _, err := tiered.Dispatch(failing(errDown))(messageOf(msgctx.NewContext(routed, bound))); err != nil {
						require.ErrorIs(t, err, errDown)
						assert.ErrorContains(t, err, "half of its Concurrency")
						assert.LessOrEqual(t, time.Since(began), givesBack)
						mu.Lock()
						defer mu.Unlock()
						back++
					}
				})
			}
			time.Sleep(4 * time.Second)
			assert.Equal(t, 16, handler.Held(), "as long as a reconnect may take")
			assert.Equal(t, []gate.Reason{gate.Holding}, handler.Paused())
			time.Sleep(time.Minute)
			assert.Equal(t, 8, handler.Held())
			assert.Equal(t, []gate.Reason{gate.Holding}, handler.Paused())
			all.Wait()
			assert.Zero(t, handler.Held())
			assert.Empty(t, handler.Paused())
			assert.Equal(t, 8, back)
			assert.Len(t, sent.copies, 8)
			assert.Equal(t, map[retry.Outcome]int{retry.Held: 16, retry.GivenBack: 8, retry.Retried: 8}, events)
		})
	}
}

// following is a subscription that follows the limits by itself.
type following struct{}

func (following) Limit(int)  {}
func (following) Taken() int { return 0 }

// errRefusedForGood is the error of a backend whose broker closes the channel because of the message.
var errRefusedForGood = because(unpublished.Refused, "the broker refuses the message")

// TestADeadLetterThatIsRefusedForGoodPausesNothing: its last form is tried at once, and then once a minute. It is held
// without its place.
func TestADeadLetterThatIsRefusedForGoodPausesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler, began := gate.New(1), time.Now()
		defer handler.Attach(following{})()
		tiered, sent := setup(t)
		var tries []time.Duration
		sent.fail = func(int) error {
			tries = append(tries, time.Since(began))
			if time.Since(began) < 150*time.Second {
				return errRefusedForGood
			}
			return nil
		}
		bound := &msgctx.Subscription{Gate: handler, Retry: tiered, Stopping: make(chan struct{})}
		done := make(chan error)
		places := gate.NewPlaces(1, 1)
		own, place := msgctx.Each(msgctx.NewContext(routed, bound))
		require.True(t, places.Take(place))
		go func() {
			_, err := tiered.Dispatch(failing(errDown))(messageOf(own))
			done <- err
		}()
		time.Sleep(90 * time.Second)
		assert.Equal(t, 1, places.Aside())
		assert.Zero(t, places.Taken())
		assert.Equal(t, 1, handler.Held())
		assert.Empty(t, handler.Paused())
		require.NoError(t, <-done)
		assert.Zero(t, handler.Held())
		assert.Equal(t, []time.Duration{0, 0, 0, time.Minute, 2 * time.Minute, 3 * time.Minute}, tries, "retry, dead letter, its last form")
		letter := sent.only(t).msg
		assert.Equal(t, errRefusedForGood.Error(), letter.Metadata[recordkey.LeftOff])
		assert.Equal(t, string(retry.DeadReasonRefused), letter.Metadata[recordkey.DeadReason])
	})
}

// TestTooManyMessagesThatAreRefusedForGood: 16 are set aside. The next one is given back at once.
func TestTooManyMessagesThatAreRefusedForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 16
		handler := gate.New(1)
		defer handler.Attach(following{})()
		tiered, sent := setup(t)
		sent.fail = always(errRefusedForGood)
		stopping := make(chan struct{})
		bound := &msgctx.Subscription{Gate: handler, Retry: tiered, Stopping: stopping}
		handle := func() error {
			own, _ := msgctx.Each(msgctx.NewContext(routed, bound))
			_, err := tiered.Dispatch(failing(errDown))(messageOf(own))
			return err
		}
		var all sync.WaitGroup
		for range most {
			all.Go(func() { require.Error(t, handle()) })
		}
		synctest.Wait()
		began := time.Now()
		require.ErrorContains(t, handle(), "too many messages whose dead letters are refused for good")
		assert.Zero(t, time.Since(began))
		assert.Equal(t, most, handler.Held())
		close(stopping)
		all.Wait()
		assert.Zero(t, handler.Held())
	})
}
