package outage_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

const before, meanwhile = 300, 200 // messages that wait when an outage begins, and that arrive in it

// The pauses are long enough to see the queue in one of them.
var breaker = &retry.Breaker{Pause: 500 * time.Millisecond, MaxPause: 2 * time.Second}

func TestOutageWithABreaker(t *testing.T) {
	t.Parallel()
	s := open(t, retry.Options{}, func(p *retry.Policy) { p.Breaker = breaker })
	s.down.Store(true)
	s.publish(0, before)
	testapp.Eventually(t, func() bool { return len(s.paused()) == 1 }, "it pauses")
	assert.Equal(t, []string{"failing"}, s.paused())
	s.publish(before, meanwhile)

	wholePause := func() bool {
		ready, consumers := s.queue()
		return ready == before+meanwhile && consumers == 0
	}
	testapp.Eventually(t, wholePause, "no consumer, and all messages are on the work queue: none is unacknowledged")
	testapp.Eventually(t, func() bool { return len(s.Events(retry.Snoozed)) >= 4 }, "probes fail")
	testapp.Eventually(t, wholePause, "it is so in each pause")
	require.NoError(t, s.Health().Ready(), "a paused handler is no fault")
	assert.Less(t, s.calls.Load(), int64(100), "about 20, those in flight, and a few probes")

	s.down.Store(false)
	testapp.Eventually(t, func() bool { return s.handled.Len() == before+meanwhile }, "all are handled")
	testapp.Eventually(t,
		func() bool {
			ready, consumers := s.queue()
			return ready == 0 && consumers == 1 &&
				s.paused() == nil
		}, "and it goes on")
	assert.Empty(t, s.Events(retry.DeadLettered))
	assert.Empty(t, s.Events(retry.GivenBack))
	assert.Empty(t, s.handled.Twice())
	assert.Zero(t, s.dead())
}

func TestARulePausesAndAShutdownDoesNotWait(t *testing.T) {
	t.Parallel()
	s := open(t, retry.Options{
		Policy: &retry.Policy{Schedule: backoff.Schedule{time.Hour},
			Rules: []retry.Rule{{Name: "maintenance", If: retry.Is(errDown), Then: retry.Pause(time.Hour)}}},
	})
	s.publish(0, 50)
	testapp.Eventually(t, func() bool { return s.handled.Len() == 50 }, "they are handled")
	s.down.Store(true)
	s.publish(50, 1)
	testapp.Eventually(t, func() bool { return len(s.paused()) == 1 }, "it pauses")
	s.publish(100, 50)
	testapp.Eventually(t, func() bool { ready, consumers := s.queue(); return ready == 50 && consumers == 0 },
		"messages wait")
	s.down.Store(false)
	s.Stop()
	ready, _ := s.queue()
	assert.Equal(t, 50, ready)
	assert.Len(t, s.Events(retry.Snoozed), 1)
	assert.EqualValues(t, 1, s.calls.Load())
}
