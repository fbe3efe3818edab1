package adopt

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
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

// TestRolloutInOneStepLoops tests the page's warning: an old instance cannot read what comes back from a tier.
func TestRolloutInOneStepLoops(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.declare()
	busy, free := make(chan struct{}, 1), make(chan struct{})
	release := sync.OnceFunc(func() { close(free) })
	const failing, slow = "order 00000", "order 00001"
	d.fails = func(identity string, call int) bool {
		if identity == slow {
			busy <- struct{}{}
			<-free
		}
		return call == 1 && identity == failing
	}
	testapp.Send(t, "", d.queue, testapp.Orders(2)...)
	updated := d.instance(withMiddleware)
	updated.handlers = 1
	updated.start()
	t.Cleanup(release)
	<-busy // the first message is on its tier, and the only new handler at work
	d.start(stock)
	broker.Eventually(t, patience, func() bool { return d.unreadable.Counts()[failing] >= loops }, "the message loops on the old instance")
	assert.Zero(t, d.processed.Len())
	t.Logf("redeliveries of one message: %d", d.unreadable.Counts()[failing])

	release() // an instance with the library ends it
	d.processed.Wait(t, 2, patience)
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
