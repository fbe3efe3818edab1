package relay_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/relay"
)

// A message of a paused handler is handled after Resume.
func TestAPausedHandlerHandlesItsMessagesAfterResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newApp(t, backoff.Schedule{time.Second}, func(config *relay.Config) { config.Policy.MaxHold = 5 * time.Second })
		var mu sync.Mutex
		var calls []string
		begin := time.Now()
		handler := func(msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, fmt.Sprint(msg.UUID, " at ", time.Since(begin).Truncate(time.Second)))
			if len(calls) == 1 {
				assert.NoError(t, c.Pause("billing"))
				return errors.New("down")
			}
			return nil
		}
		c.handle("billing", handler)
		c.run()
		c.publish("1")
		time.Sleep(time.Second / 2)
		c.publish("2")
		time.Sleep(time.Minute - time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"1 at 0s"}, calls, "neither the second message nor the retry of the first one")
		assert.NoError(t, c.Health().Ready())

		require.NoError(t, c.Resume("billing"))
		synctest.Wait()
		assert.ElementsMatch(t, []string{"1 at 0s", "1 at 59s", "2 at 59s"}, calls)
		c.close()
	})
}

// A router, or the connection, closes while a message waits for the end of a pause.
func TestAPauseDoesNotHoldAClose(t *testing.T) { // not in a bubble: the router holds a lock while it closes
	for _, first := range []func(c *app) error{func(*app) error { return nil }, func(c *app) error { return c.Close() }} {
		c := newApp(t, backoff.Schedule{time.Second})
		c.handle("billing", func(*message.Message) error { t.Error("the handler is paused"); return nil })
		c.run()
		require.NoError(t, c.Pause("billing"))
		c.publish("1")
		require.NoError(t, first(c))
		c.stop() // before the router's CloseTimeout
	}
}

// An ended subscription is a fault, also of a paused handler.
func TestHealthOfAPausedHandlerThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newApp(t, backoff.Schedule{time.Second})
		c.handle("billing", func(*message.Message) error { return nil })
		c.run()
		require.NoError(t, c.Pause("billing"))
		require.NoError(t, c.Health().Ready())
		require.NoError(t, c.pubSub.Close())
		synctest.Wait()
		require.ErrorContains(t, c.Health().Ready(), `handler "billing" does not consume "orders"`)
		require.NoError(t, c.router.Close())
		require.NoError(t, <-c.stopped)
		require.NoError(t, c.Close())
	})
}
