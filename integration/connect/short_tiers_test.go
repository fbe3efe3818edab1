package connect_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
)

// TestManyRequestedDelaysOverShortTiers: half of the messages are delayed by their publisher, half by their handler.
// None comes early, and each is published once a second.
func TestManyRequestedDelaysOverShortTiers(t *testing.T) {
	t.Parallel()
	const (
		requested = 3 * time.Second
		delayed   = 200
	)
	s := testapp.New(t, func(b *config.Config) {
		b.Policy.Schedule = backoff.Schedule{100 * time.Millisecond, 200 * time.Millisecond}
	})
	var w waits
	var mu sync.Mutex
	from, late := map[string]time.Time{}, map[string]time.Duration{}
	done := testapp.NewLedger()
	s.Observe(eventtest.OnEvent(w.observe))
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		began, seen := from[msg.UUID]
		if !seen {
			from[msg.UUID] = time.Now()
			return backoff.RetryAfter(errDown, requested)
		}
		late[msg.UUID] = time.Since(began) - requested
		done.Add(msg.UUID)
		return nil
	})
	s.Run()

	all := testapp.Messages(testapp.IDs(delayed)...)
	mu.Lock()
	for i, msg := range all {
		if i%2 == 0 {
			delay.Message(msg, delay.For(requested))
			from[msg.UUID] = time.Now()
		}
	}
	mu.Unlock()
	require.NoError(t, s.Publisher().Publish(s.Queue("orders"), all...))
	done.Wait(t, delayed, 2*soon)
	assert.Empty(t, done.Twice())
	testapp.Eventually(t, func() bool { return w.len() >= 3*delayed }, "Observe runs after the confirm")
	mu.Lock()
	defer mu.Unlock()
	for uuid, by := range late {
		assert.GreaterOrEqual(t, by, broker.Least(requested)-requested, uuid)
		assert.Equal(t, slices.Repeat([]string{"1s"}, 3), w.of(uuid), uuid)
	}
}
