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

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// A Pub/Sub that cannot be told to stop: messages wait before the handler, and go back to it after MaxHold.
func TestOutageWithABreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newApp(t, backoff.Schedule{time.Second}, func(c *relay.Config) {
			c.Policy.Breaker, c.Policy.MaxHold = &retry.Breaker{Least: 5}, 20*time.Second
		}, forHandlers(greedily))
		const messages = 50
		up := time.Now().Add(10 * time.Minute)
		var mu sync.Mutex
		handled, outcomes, calls := map[string]int{}, map[retry.Outcome]int{}, 0
		c.Observe(eventtest.OnEvent(func(e retry.Event) {
			mu.Lock()
			defer mu.Unlock()
			outcomes[e.Outcome]++
		}))
		c.handle("billing", func(msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if time.Now().Before(up) {
				calls++
				return errors.New("down")
			}
			handled[msg.UUID]++
			return nil
		})
		c.run()
		for i := range messages {
			c.publish(fmt.Sprint(i))
		}
		time.Sleep(time.Until(up) + 2*time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		t.Logf("%d calls in the outage, %v", calls, outcomes)
		assert.Zero(t, outcomes[retry.DeadLettered])
		assert.Len(t, handled, messages)
		for uuid, times := range handled {
			assert.Equal(t, 1, times, uuid)
		}
		assert.Less(t, calls, 16+5+5+10*60*4/3/30, "those in flight, 5, the first pauses, and one in each MaxPause")
		assert.NotZero(t, outcomes[retry.GivenBack], "after MaxHold")
		c.close()
	})
}
