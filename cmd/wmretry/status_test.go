package main

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// declareWith declares a work queue with a schedule. All of it is deleted when the test ends.
func declareWith(t testing.TB, delays ...time.Duration) *queues {
	t.Helper()
	work := unique(t, "wmretry_status")
	q := &queues{t: t, work: work, dead: deadletter.QueueOf(work), prefix: work + "_own", channel: channelOf(t)}
	q.topology = topology.New(topology.Config{Tiers: backoff.Schedule(delays).Tiers(), Prefix: q.prefix}, topology.Queue{Name: work, Durable: true})
	require.NoError(t, q.topology.Declare(q.channel))
	t.Cleanup(func() { removeAll(t, work) })
	return q
}

// removeAll deletes every queue and exchange whose name contains a text.
func removeAll(t testing.TB, text string) {
	t.Helper()
	client := managementOf(t)
	queues, err := client.ListQueuesWithParametersIn("/", url.Values{"columns": {"name"}})
	require.NoError(t, err)
	for _, q := range queues {
		if strings.Contains(q.Name, text) {
			_, _ = client.DeleteQueue("/", q.Name)
		}
	}
	exchanges, err := client.ListExchangesIn("/")
	require.NoError(t, err)
	for _, e := range exchanges {
		if strings.Contains(e.Name, text) {
			_, _ = client.DeleteExchange("/", e.Name)
		}
	}
}

// wait publishes messages that wait on a tier.
func (q *queues) wait(tier string, n int) {
	q.t.Helper()
	for i := range n {
		send(q.t, q.channel, q.prefix, tier+"."+q.work,
			amqp091.Publishing{Body: fmt.Append(nil, i), Headers: amqp091.Table{uuidHeader: fmt.Sprint(i)}})
	}
}

func (q *queues) tier(word string) string { return q.work + "." + q.prefix + "." + word }

// statusOf returns the status of the work queue in a line of JSON.
func (q *queues) statusOf(t testing.TB, text string) (w deadletter.WorkQueue, found bool) {
	t.Helper()
	for _, status := range lines[deadletter.Status](t, text) {
		if at := slices.IndexFunc(status.Queues, func(w deadletter.WorkQueue) bool { return w.Name == q.work }); at >= 0 {
			return status.Queues[at], true
		}
	}
	return w, false
}

// awaitStatus waits until the management API shows as many messages.
func (q *queues) awaitStatus(dead int, tiers ...int) deadletter.WorkQueue {
	q.t.Helper()
	var w deadletter.WorkQueue
	require.Eventually(q.t, func() bool {
		w, _ = q.statusOf(q.t, run(q.t, 0, "status", q.work, "--prefix", q.prefix, "--json").stdout)
		have := []int{w.Dead.Messages}
		for _, tier := range w.Tiers {
			have = append(have, tier.Messages)
		}
		return slices.Equal(have, append([]int{dead}, tiers...))
	}, 2*patience, time.Second, "the figures of the management API")
	return w
}

func TestStatus(t *testing.T) {
	t.Parallel()
	q := declareWith(t, time.Hour, 2*time.Hour)
	q.timeouts(3)
	q.wait("2h", 4)
	w := q.awaitStatus(3, 0, 4)
	assert.False(t, w.Missing)
	assert.Zero(t, w.Tiers[0].NextDue)
	assert.WithinDuration(t, time.Now().Add(2*time.Hour), w.Tiers[1].NextDue, 5*time.Minute)
	assert.False(t, w.Tiers[1].Retired)

	all := run(t, 0, "status", "--prefix", q.prefix).stdout
	assert.Regexp(t, `(?m)^`+q.work+` +0 +0 +0 +0 +no consumer: paused, or its app is down$`, all)
	assert.Regexp(t, `(?m)^  tier 2h +4 +4 +0 +0 +within 2h$`, all)
	assert.NotContains(t, all, "tier 1h ", "an empty tier")
	assert.Regexp(t, `(?m)^  dead letters +3 +3 +0 +0$`, all)
	assert.Regexp(t, `(?m)^`+q.prefix+`\.orphans +0`, all)
	assert.NotContains(t, all, "\x1b")

	assert.Regexp(t, `absent +- +- +- +- +does not exist`, run(t, 0, "status", "absent", "--prefix", q.prefix).stdout)
}

// TestStatusWithoutManagement: it has no figures.
func TestStatusWithoutManagement(t *testing.T) {
	t.Parallel()
	r := runWith(t, 1, []string{"AMQP_MANAGEMENT_URL=http://127.0.0.1:1"}, "status", "orders")
	assert.Contains(t, r.stderr, "the management API at 127.0.0.1:1 does not answer")
}
