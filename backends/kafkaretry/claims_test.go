package kafkaretry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/pauses"
)

// watermill-kafka joins again at once where sarama refuses to join. The pauses between the joins grow, and end with the
// subscription.
func TestJoinsThatFailPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := &claims{ctx: ctx}
		began := time.Now()
		c.WrapConsumerGroupHandler(nil)
		assert.Zero(t, time.Since(began), "the first join")
		for failures := range 10 {
			began := time.Now()
			c.WrapConsumerGroupHandler(nil)
			assert.GreaterOrEqual(t, time.Since(began), pauses.Doubled(pauses.First, int64(failures), pauses.Longest)/2)
		}
		c.began.Store(true)
		began = time.Now()
		c.WrapConsumerGroupHandler(nil)
		assert.LessOrEqual(t, time.Since(began), pauses.First, "there was a session")
		cancel()
		began = time.Now()
		for range 10 {
			c.WrapConsumerGroupHandler(nil)
		}
		assert.Zero(t, time.Since(began))
	})
}
