package adopt

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
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
