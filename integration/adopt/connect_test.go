package adopt

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

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
