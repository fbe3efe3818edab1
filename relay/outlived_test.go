package relay_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// The backend ends the context of a message after ten seconds, and delivers it again, for ever. The message behind it
// is handled.
func TestCallThatOutlivesItsMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders := &scripted{}
		a := newApp(t, backoff.Schedule{time.Second},
			forHandlers(func(message.Subscriber) (message.Subscriber, error) { return orders, nil }))
		var c calls
		a.handle("billing", func(msg *message.Message) error {
			c.add(msg)
			if msg.UUID == "slow" {
				time.Sleep(12 * time.Second)
				return backoff.Permanent(errDown)
			}
			return nil
		}, retry.Options{Concurrency: 1})
		a.run()
		deliver := func(uuid string) (acked bool) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			msg := orderOf(uuid)
			msg.SetContext(ctx)
			orders.send(msg)
			select {
			case <-msg.Acked():
				return true
			case <-msg.Nacked():
				return false
			}
		}
		assert.False(t, deliver("slow"))
		assert.True(t, deliver("slow"))
		assert.True(t, deliver("next"))
		assert.Len(t, c.got, 2)
		dead := a.publisher.to("retry.dead.billing")
		if assert.Len(t, dead, 1) {
			assert.Equal(t, "slow", dead[0].msg.UUID)
			assert.Equal(t, string(retry.DeadReasonPermanent), dead[0].msg.Metadata[recordkey.DeadReason])
		}
		a.close()
	})
}
