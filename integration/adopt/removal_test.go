package adopt

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// TestRemovalFromAQueueOfTheApp: the queue is the app's own, the traffic goes on, and another app shares the prefix.
func TestRemovalFromAQueueOfTheApp(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.schedule, d.takes = backoff.Schedule{3 * time.Second, time.Second}, 2*time.Millisecond
	d.declare()
	assert.False(t, d.declaredByLibrary())
	policy := "retry of " + d.queue
	testapp.PutPolicy(t, policy, "^"+d.queue+"$",
		fmt.Sprintf(`{"dead-letter-exchange":%q,"dead-letter-routing-key":%q}`, d.prefix, "dead."+d.queue))
	other := newDeployment(t)
	other.prefix, other.queue = d.prefix, "mails_"+d.prefix
	other.start(withMiddleware)
	others := other.send(50)

	running := d.both(withMiddleware)
	f := d.send(400)
	work(t, 60, running...)

	// Step 1: every instance loses the middleware and keeps the subscriber configuration.
	running = d.replace(running, subscriberOnly)
	// They are slow: when the tiers are empty, what was on them is still on the work queue, behind other messages.
	releases := []func(){running[0].block(), running[1].block()}
	f.burst(500)

	// Step 2: nothing waits any more.
	d.waitUntilEmpty(d.tiers()...)
	returned := running[0].returned.Load() + running[1].returned.Load()

	// Step 3: what came from a tier is processed. What is on the queue after that is new.
	for _, release := range releases {
		release()
	}
	broker.Eventually(t, patience, func() bool { return testapp.Depth(t, d.queue) == 0 }, "the work queue is empty once")
	before := int(f.published.Load()) // some of these are unacknowledged
	broker.Eventually(t, patience, func() bool {
		processed := d.processed.Counts()
		for n := 1; n <= before; n++ {
			if processed[testapp.ID(n)] == 0 {
				return false
			}
		}
		return true
	}, "what was unacknowledged then is processed")

	// Step 4: every instance loses the library.
	assert.Greater(t, running[0].returned.Load()+running[1].returned.Load(), returned)
	running = d.replace(running, stock)
	f.more(60)
	work(t, 40, running...)

	// Step 5: what is left on the broker, but for what the other app uses.
	testapp.DeletePolicy(t, policy)
	require.Zero(t, sum(d.ready(d.queue+".dead")))
	for _, queue := range append(d.tiers(), d.queue+".dead") {
		testapp.Delete(t, queue)
	}
	assert.Equal(t, http.StatusBadRequest, deleteExchange(t, d.prefix+"?if-unused=true"), "the other app uses the prefix")
	f.more(60)
	d.balance(f, d.queue, d.prefix+".orphans")
	assert.Equal(t, []string{d.queue}, d.queues(), "of the app nothing is left but its own queue")
	others.more(40)
	other.balance(others, append(other.tiers(), other.queue, other.queue+".dead")...)
}

// declaredByLibrary is what the page reads off `rabbitmqctl list_queues name arguments`.
func (d *deployment) declaredByLibrary() bool {
	d.t.Helper()
	for line := range strings.Lines(broker.Ctl(d.t, "list_queues", "name", "arguments")) {
		if name, arguments, _ := strings.Cut(line, "\t"); name == d.queue {
			return strings.Contains(arguments, fmt.Sprintf(`{"x-dead-letter-exchange",%q}`, d.prefix))
		}
	}
	require.Failf(d.t, "no such queue", d.queue)
	return false
}

// queues are the names of the queues on the broker that have the app's name.
func (d *deployment) queues() []string {
	d.t.Helper()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(d.list())), func(name string) bool { return !strings.Contains(name, d.queue) })
}

// deleteExchange sends the page's request, and returns the status.
func deleteExchange(t *testing.T, exchange string) int {
	t.Helper()
	client := broker.Management(t)
	request, err := http.NewRequest(http.MethodDelete, client.Endpoint+"/api/exchanges/%2F/"+exchange, nil)
	require.NoError(t, err)
	request.SetBasicAuth(client.Username, client.Password)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode
}

// TestRemovalWithANewQueue: the library has declared the queue, or it is never empty.
func TestRemovalWithANewQueue(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.schedule = backoff.Schedule{5 * time.Second, time.Second}
	running := d.both(withMiddleware)
	assert.True(t, d.declaredByLibrary())
	require.ErrorContains(t, d.subscribe(d.instance(stock)), "406")
	f := d.send(800)
	work(t, 60, running...)

	// Step 1: every instance loses the middleware and keeps the subscriber configuration.
	running = d.replace(running, subscriberOnly)

	// Step 2: every instance also consumes a new queue, without the library.
	stocks := []*instance{d.instance(stock), d.instance(stock)}
	for _, i := range stocks {
		i.queue = "new" + d.queue
		i.start()
	}

	// Step 3: messages go to the new queue.
	f.moveTo(stocks[0].queue)
	work(t, 40, stocks...)

	// Step 4: nothing waits, and nothing is on the old queue.
	d.waitUntilEmpty(append(d.tiers(), d.queue)...)

	// Step 5: no instance consumes the old queue.
	stop(running)

	// Step 6: what is left on the broker.
	require.Zero(t, sum(d.ready(d.queue, d.queue+".dead", d.prefix+".orphans")))
	for _, queue := range append(d.tiers(), d.queue, d.queue+".dead") {
		testapp.Delete(t, queue)
	}
	assert.Equal(t, http.StatusNoContent, deleteExchange(t, d.prefix+"?if-unused=true"), "no other app uses the prefix")
	for _, exchange := range []string{d.prefix + ".return", d.prefix + ".return.any", d.prefix + ".orphans"} {
		assert.Equal(t, http.StatusNoContent, deleteExchange(t, exchange))
	}
	testapp.Delete(t, d.prefix+".orphans")
	f.more(60)
	d.balance(f, stocks[0].queue)
	assert.Equal(t, []string{stocks[0].queue}, d.queues())
}
