package outage_test

import (
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// openFailing returns a handler that pauses after four messages, which then wait for an hour.
func openFailing(t *testing.T, options retry.Options) *shop {
	t.Helper()
	return open(t, options, func(p *retry.Policy) {
		p.Schedule = backoff.Schedule{time.Hour}
		p.Breaker = &retry.Breaker{Least: 4, Pause: 300 * time.Millisecond, MaxPause: 2 * time.Second}
	})
}

// TestTheProbeWaitsForItsKey while the handler of another message with that key hangs.
func TestTheProbeWaitsForItsKey(t *testing.T) {
	t.Parallel()
	s := openFailing(t, retry.Options{
		Concurrency: 4, Order: retry.Order{Key: func(msg *message.Message) string { return msg.Metadata.Get("key") }},
	})
	hanging := make(chan struct{})
	release := sync.OnceFunc(func() { close(hanging) })
	s.hangs.Store(&hanging)
	t.Cleanup(release)
	s.send("hangs", "key", "A")
	testapp.Eventually(t, func() bool { return s.state().InFlight == 1 }, "it hangs")
	s.send("waits", "key", "A")
	testapp.Eventually(t, func() bool { return s.state().Deliveries == 2 }, "it waits for its key")
	s.failUntilThePause()
	s.goesOnWithoutTheProbe()
	release()
	testapp.Eventually(t, func() bool { return s.handled.Len() == meanwhile+2 }, "these are handled, too")
}

// TestTheProbeIsHeldBeforeItsHandler is called: it has a requested delay, and neither a tier nor the dead-letter queue
// takes its copy.
func TestTheProbeIsHeldBeforeItsHandler(t *testing.T) {
	t.Parallel()
	s := openFailing(t, retry.Options{})
	s.failUntilThePause()
	testapp.PutPolicy(t, s.orders+".full", "^"+regexp.QuoteMeta(s.orders+"."), `{"max-length": 1, "overflow": "reject-publish"}`)
	testapp.Saturate(t, s.orders+"."+s.Name+".1h")
	testapp.Saturate(t, s.orders+".dead")
	s.send("held", delay.DelayedForKey, "10s")
	testapp.Eventually(t, func() bool { return s.state().Holding == 1 }, "its copy is held")
	s.goesOnWithoutTheProbe()
}

// failUntilThePause publishes four messages that fail.
func (s *shop) failUntilThePause() {
	s.t.Helper()
	s.down.Store(true)
	s.publish(1000, 4)
	testapp.Eventually(s.t, func() bool { return len(s.paused()) == 1 }, "it pauses")
	s.down.Store(false)
}

// goesOnWithoutTheProbe publishes messages, which are handled although the probe keeps its place.
func (s *shop) goesOnWithoutTheProbe() {
	s.t.Helper()
	testapp.Eventually(s.t, func() bool { return s.state().PausedLimit > 0 }, "Health has the limit of the probe")
	assert.Equal(s.t, []string{"failing"}, s.paused())
	assert.WithinRange(s.t, s.state().PausedSince, time.Now().Add(-soon), time.Now())
	s.publish(0, meanwhile)
	testapp.Eventually(s.t, func() bool { return s.handled.Len() == meanwhile && s.paused() == nil },
		"the handler goes on without a limit")
	assert.Zero(s.t, s.state().PausedSince)
}
