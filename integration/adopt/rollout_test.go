package adopt

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// TestRolloutInTwoSteps: at every stage instances of two builds share the queue, under traffic.
func TestRolloutInTwoSteps(t *testing.T) {
	t.Parallel()
	rollOut(t, subscriberOnly, withMiddleware)
}

// TestRolloutOfConnectInTwoSteps: the same with Connect.
func TestRolloutOfConnectInTwoSteps(t *testing.T) {
	t.Parallel()
	rollOut(t, connectedOnly, connected)
}

// rollOut replaces instances without the library by those of step 1, and these by those of step 2.
func rollOut(t *testing.T, step1, step2 build) {
	t.Helper()
	d := newDeployment(t)
	d.concurrency = 1
	d.declare()
	before, err := broker.Queue(broker.Management(t), d.queue)
	require.NoError(t, err)
	old := d.both(stock)
	f := d.send(400)
	work(t, 10, old...)

	// Step 1: every instance gets the library's subscriber, one after the other.
	first := d.replace(old, step1)
	for _, i := range first {
		assert.Equal(t, 1, i.log.Count("rabbitmqctl set_policy"), "one warning: the existing queue has no dead-letter exchange")
	}

	// Step 2: every instance gets the middleware. What comes back from a tier reaches instances without it, too.
	second := d.replace(first, step2, func(*instance) { returnsTo(t, first...) })
	returnsTo(t, second...)

	d.balance(f, append(d.tiers(), d.queue, d.queue+".dead", d.prefix+".orphans")...)
	after, err := broker.Queue(broker.Management(t), d.queue)
	require.NoError(t, err)
	assert.Equal(t, before.Arguments, after.Arguments, "the queue is as it was")
	assert.Empty(t, after.Policy)
}

// TestOrderOfTheQueueIsKeptInTwoSteps with Concurrency 1, as the page has it: messages that do not fail are handled as
// before.
func TestOrderOfTheQueueIsKeptInTwoSteps(t *testing.T) {
	t.Parallel()
	const count = 200
	var sent []string
	for i := range count {
		sent = append(sent, "order "+testapp.ID(i))
	}
	for _, step := range []build{connectedOnly, connected} {
		d := newDeployment(t)
		d.concurrency = 1
		d.declare()
		var mu sync.Mutex
		var handled []string
		d.fails = func(identity string, _ int) bool {
			mu.Lock()
			defer mu.Unlock()
			handled = append(handled, identity)
			return false
		}
		testapp.Send(t, "", d.queue, testapp.Orders(count)...)
		one := d.instance(step)
		one.handlers = 1
		one.start()
		d.processed.Wait(t, count, patience)
		one.stop()
		assert.Equal(t, sent, handled)
	}
}

// TestRolloutOfAQueueThatDoesNotExist: an old instance cannot declare again what the library has declared, unless that left
// the queue as the app's own configuration describes it.
func TestRolloutOfAQueueThatDoesNotExist(t *testing.T) {
	t.Parallel()
	protected := newDeployment(t)
	require.NoError(t, protected.subscribe(protected.instance(subscriberOnly)))
	require.ErrorContains(t, protected.subscribe(protected.instance(stock)), "406")

	left := newDeployment(t)
	leave := left.instance(subscriberOnly)
	leave.change = func(c *config.Config) { c.WorkQueueMode = topology.Leave }
	require.NoError(t, left.subscribe(leave))
	require.NoError(t, left.subscribe(left.instance(stock)))
	require.NoError(t, left.subscribe(left.instance(withMiddleware)), "afterwards without Leave")
}

// TestFromThePartsToConnect: instances with the parts and instances with Connect share the queue, under traffic.
func TestFromThePartsToConnect(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	old := d.both(withMiddleware)
	before, err := broker.Queue(broker.Management(t), d.queue)
	require.NoError(t, err)
	queues := d.queues()
	f := d.send(400)
	work(t, 10, old...)

	// Step 1: every instance gets Connect, one after the other.
	updated := d.replace(old, connected, func(first *instance) {
		broker.Eventually(t, patience, func() bool { return old[0].retried.Len() > 0 && first.retried.Len() > 0 }, "both builds retry")
		returnsTo(t, old[0], first)
	})

	// A rollback.
	back := d.start(withMiddleware)
	work(t, 10, back, updated[0], updated[1])
	updated[0].stop()
	work(t, 10, back, updated[1])

	d.balance(f, append(d.tiers(), d.queue, d.queue+".dead", d.prefix+".orphans")...)
	assert.Equal(t, queues, d.queues(), "no queue is new")
	after, err := broker.Queue(broker.Management(t), d.queue)
	require.NoError(t, err)
	assert.Equal(t, before.Arguments, after.Arguments, "the queue is as it was")
}

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
