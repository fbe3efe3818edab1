package retrytest_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"

	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// Messages and retries of a paused handler wait until it is resumed.
func TestAPausedHandlerGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := retrytest.New(t, backoff.Schedule{time.Second, 30 * time.Second})
		begin := time.Now()
		var mu sync.Mutex
		var calls []time.Duration
		app.AddConsumerHandler(app.Router, "billing", "orders", func(msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, time.Since(begin).Round(time.Second))
			if len(calls) == 1 {
				require.NoError(t, app.Pause("billing"))
				for _, uuid := range []string{"2", "3", "4"} {
					require.NoError(t, app.Publisher().Publish("orders", message.NewMessage(uuid, nil)))
				}
				time.AfterFunc(10*time.Minute, func() {
					assert.Equal(t, []string{"paused"}, app.Health().Subscriptions[0].Paused)
					assert.NoError(t, app.Resume("billing"))
				})
				return errors.New("down")
			}
			return nil
		})
		app.Send("orders", message.NewMessage("1", nil))
		stories := app.Stories("orders")
		require.Len(t, stories, 4)
		for _, story := range stories {
			story.Processed()
		}
		assert.Equal(t, []time.Duration{0, 10 * time.Minute, 10 * time.Minute, 10 * time.Minute, 10 * time.Minute}, calls)
		require.NoError(t, app.Health().Ready())
		assert.Nil(t, app.Health().Subscriptions[0].Paused)
	})
}

// Some messages can wait for hours, behind others that are tried. Send has patience while something happens.
func TestSendWaitsForTheEndOfManyPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := retrytest.New(t, backoff.Schedule{time.Hour})
		begin, first := time.Now(), true
		app.AddConsumerHandler(app.Router, "billing", "orders", func(*message.Message) error {
			if first {
				first = false
				for _, uuid := range []string{"2", "3", "4", "5", "6", "7", "8"} {
					assert.NoError(t, app.Publisher().Publish("orders", message.NewMessage(uuid, nil)))
				}
			}
			if time.Since(begin) < 3*time.Hour {
				return errBusy
			}
			return nil
		}, retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{time.Hour}, Rules: []retry.Rule{{If: retry.Is(errBusy), Then: retry.Pause(50 * time.Minute)}}}})
		app.Send("orders", message.NewMessage("1", nil)).Processed()
		stories := app.Stories("orders")
		require.Len(t, stories, 8)
		for _, story := range stories {
			story.Processed()
		}
		assert.GreaterOrEqual(t, time.Since(begin), 3*time.Hour)
	})
}

// The handlers of a group share the messages: those of a paused one go to the others.
func TestTheGroupOfAPausedHandlerGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := retrytest.New(t, backoff.Schedule{time.Second})
		var mu sync.Mutex
		var by []string
		for _, name := range []string{"first", "second"} {
			app.AddConsumerHandler(app.Router, name, "orders", func(*message.Message) error {
				mu.Lock()
				defer mu.Unlock()
				by = append(by, name)
				return nil
			})
		}
		require.NoError(t, app.Pause("first"))
		for range 20 {
			app.Send("orders", message.NewMessage("1", nil)).Processed()
		}
		assert.Equal(t, slices.Repeat([]string{"second"}, 20), by)
	})
}
