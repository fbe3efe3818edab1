package relay_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
)

// A paused handler gets neither messages nor retries, and all of them after Resume. Another one goes on meanwhile.
func TestAPausedHandlerGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const orders = 10
		a := newApp(t, backoff.Schedule{time.Second}, forHandlers(greedily))
		billing, shipping := newFailsOnce(), newFailsOnce()
		a.handle("billing", billing.handle(orders))
		a.handle("shipping", shipping.handle(orders))
		require.ErrorContains(t, a.Pause("bill"), `no handler is named "bill": the handlers are "billing", "shipping"`)
		require.NoError(t, a.Pause("billing")) // before the router runs
		a.run()
		for i := range orders {
			a.publish(fmt.Sprint(i))
		}
		<-shipping.done
		assert.Empty(t, billing.all)
		require.NoError(t, a.Health().Ready(), "a pause is no fault")

		require.NoError(t, a.Resume("billing"))
		synctest.Wait()
		require.NoError(t, a.Pause("billing"))
		time.Sleep(time.Minute)
		assert.Len(t, billing.all, orders, "the retries wait, too")
		require.NoError(t, a.Resume("billing"))
		<-billing.done
		a.close()
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
