package adopt

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// TestChangedSchedule: instances with the old and the new schedule share the queue, under traffic. The new one has a retry less.
func TestChangedSchedule(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.declare()
	d.schedule = backoff.Schedule{300 * time.Millisecond, 3 * time.Second}
	const hopeless = "00010"
	var alone atomic.Bool
	alone.Store(true)
	d.fails = func(identity string, call int) bool {
		twice := alone.Load() && call == 2 && strings.HasSuffix(identity, "25")
		return call == 1 && strings.HasSuffix(identity, "5") || twice || identity == hopeless
	}
	oldTiers := d.tiers()
	old := d.start(withMiddleware)
	f := d.send(400)
	work(t, 20, old)

	// Step 1: every instance gets the new schedule.
	broker.Eventually(t, patience, func() bool {
		return old.retried.Counts()[d.queue+"."+d.prefix+".3s"] > 0 && d.calls.Counts()[hopeless] == 2
	}, "messages wait on the old tier")
	alone.Store(false)
	d.schedule = backoff.Schedule{500 * time.Millisecond}
	updated := d.start(withMiddleware)
	work(t, 20, old, updated)
	old.stop()

	// Step 2: nothing waits on the old tiers. What did comes back from them, and its failures are counted on.
	d.waitUntilEmpty(oldTiers...)
	broker.Eventually(t, patience, func() bool { return updated.returned.Load() > 0 }, "the updated instance processes what comes back")

	// Step 3: the old tiers go, and nothing declares them again.
	for _, tier := range oldTiers {
		testapp.Delete(t, tier)
	}
	work(t, 40, updated)
	broker.Eventually(t, patience, func() bool { return updated.retried.Counts()[d.queue+"."+d.prefix+".500ms"] > 0 }, "messages fail with the new schedule")

	names := d.queues()
	assert.NotContains(t, names, oldTiers[0])
	assert.NotContains(t, names, oldTiers[1])

	letter := testapp.Take(t, d.queue+".dead", 1)[0]
	assert.Equal(t, hopeless, string(letter.Body))
	assert.Equal(t, "3", letter.Headers[recordkey.Failures], "two by the old schedule, the third is one too many for the new one")
	d.processed.Add(hopeless) // so that the numbers add up
	d.balance(f, append(d.tiers(), d.queue)...)
}
