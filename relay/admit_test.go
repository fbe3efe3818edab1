package relay

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/binding"
	"github.com/tieredretry/watermill-retry/internal/gate"
)

// A probe takes one message at a time, of the topic or of the return topic.
func TestALimitBoundsTheMessagesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		subscribed, end := context.WithCancel(t.Context())
		g := gate.New(1)
		m := &merged{subscribed: subscribed, binding: &binding.Binding{Gate: g}, patience: time.Minute}
		first, second, third, fourth := message.NewMessage("1", nil), message.NewMessage("2", nil), message.NewMessage("3", nil), message.NewMessage("4", nil)
		g.Set(gate.Failing, 1)
		assert.True(t, m.admit(first))
		begin := time.Now()
		time.AfterFunc(10*time.Second, func() { first.Ack() })
		assert.True(t, m.admit(second))
		assert.Equal(t, 10*time.Second, time.Since(begin), "when the first one is settled")
		assert.False(t, m.admit(third), "the second one is in flight for longer than a message waits")
		assert.Equal(t, 10*time.Second+time.Minute, time.Since(begin))
		second.Nack()
		synctest.Wait()
		assert.True(t, m.admit(third))
		cancelled, cancel := context.WithCancel(t.Context())
		fourth.SetContext(cancelled)
		time.AfterFunc(time.Second, cancel)
		assert.False(t, m.admit(fourth), "the backend has taken the delivery back")
		g.Set(gate.Failing, -1)
		assert.True(t, m.admit(fourth), "without a limit")
		end() // ends the goroutine that waits for the third message
	})
}
