package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// removeAll deletes every queue and exchange whose name contains a text.
func removeAll(t testing.TB, text string) {
	t.Helper()
	client := managementOf(t)
	var queues []rabbithole.QueueInfo
	var err error
	require.Eventually(t, func() bool { // RabbitMQ answers 500 where a queue is deleted while it lists them
		queues, err = client.ListQueuesWithParametersIn("/", url.Values{"columns": {"name"}})
		return err == nil
	}, patience, 100*time.Millisecond, "the management API lists the queues")
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
func (q *queues) statusOf(t testing.TB, text string) (w letters.WorkQueue, found bool) {
	t.Helper()
	for _, status := range lines[letters.Status](t, text) {
		if at := slices.IndexFunc(status.Queues, func(w letters.WorkQueue) bool { return w.Name == q.work }); at >= 0 {
			return status.Queues[at], true
		}
	}
	return w, false
}

// awaitStatus waits until the management API shows as many messages.
func (q *queues) awaitStatus(dead int, tiers ...int) letters.WorkQueue {
	q.t.Helper()
	var w letters.WorkQueue
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

// awaitBoard waits until the board of all work queues has a line, and returns it. Its figures are older than those of one
// queue: the management API keeps its list of all queues for a while.
func (q *queues) awaitBoard(line string) (board string) {
	q.t.Helper()
	has := regexp.MustCompile(line)
	require.Eventually(q.t, func() bool {
		board = run(q.t, 0, "status", "--prefix", q.prefix).stdout
		return has.MatchString(board)
	}, 2*patience, time.Second, "%s on the board", line)
	return board
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

	all := q.awaitBoard(`(?m)^  tier 2h +4 +4 +0 +0 +within 2h$`)
	assert.Regexp(t, `(?m)^`+q.work+` +0 +0 +0 +0 +no consumer: paused, or its app is down$`, all)
	assert.NotContains(t, all, "tier 1h ", "an empty tier")
	assert.Regexp(t, `(?m)^  dead letters +3 +3 +0 +0$`, all)
	assert.Regexp(t, `(?m)^`+q.prefix+`\.orphans +0`, all)
	assert.NotContains(t, all, "\x1b")

	assert.Regexp(t, `absent +- +- +- +- +does not exist`, run(t, 0, "status", "absent", "--prefix", q.prefix).stdout)
	r := run(t, 1, "tiers", "drain", q.work, "3h", "--prefix", q.prefix)
	assert.Contains(t, r.stderr, "`wmretry status --all` lists the tiers")
	assert.Contains(t, run(t, 0, "dead", "list", "--as-is", q.tier("2h")).stdout, "(no record)")
}

func TestStatusCountsPartitions(t *testing.T) {
	t.Parallel()
	q := declareAs(t, topology.Config{Partitions: 3, Prefetch: 5}, nil)
	work := q.work
	for _, partition := range []string{"0", "1", "2"} {
		send(t, q.channel, work+".order", partition, make([]amqp091.Publishing, 7)...)
	}
	require.NoError(t, q.channel.Qos(1, 0, false))
	_, err := q.channel.Consume(work+".order.0", "", false, false, false, false, nil) // one message stays without an ack
	require.NoError(t, err)
	require.NoError(t, q.channel.Publish("", work, true, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent}))

	want := letters.Depth{Queue: work, Messages: 22, Ready: 21, Unacked: 1}
	require.Eventually(t, func() bool {
		w, found := q.statusOf(t, run(t, 0, "status", work, "--prefix", q.prefix, "--json").stdout)
		return found && w.Depth == want
	}, 2*patience, time.Second, "the figures of the management API")
	q.awaitBoard(`(?m)^` + work + ` +22 +21 +1 +0 +no consumer: paused, or its app is down, with 3 partitions$`)

	_, err = q.channel.QueueDelete(work, false, false, false)
	require.NoError(t, err)
	q.awaitBoard(`(?m)^` + work + ` +21 +20 +1 +0 +does not exist, with 3 partitions$`)
}

// TestExportedPermissionsSufficeForPartitions runs an app, and decides about its blocked key, with exactly the exported
// permissions.
func TestExportedPermissionsSufficeForPartitions(t *testing.T) {
	t.Parallel()
	q := newRoles(t, "--partitions", "2")
	work, as := q.work, q.as
	var calls atomic.Int32
	q.run(retry.Policy{Schedule: backoff.Schedule{time.Hour}}, func(*message.Message) error {
		calls.Add(1)
		return backoff.Permanent(assert.AnError)
	}, retry.Options{Order: retry.Order{
		Key: func(msg *message.Message) string { return msg.Metadata.Get("customer") }, Partitions: 2, Block: true,
	}})
	q.publish(message.Metadata{"customer": "7"})

	shows := func(key string) func() bool {
		return func() bool {
			r := start(t, q.environ["operator"], "order", "status", work, "--prefix", q.prefix).wait()
			return r.code == 0 && strings.Contains(r.stdout, key)
		}
	}
	require.Eventually(t, shows("permanent: "), patience, 100*time.Millisecond, "the blocked key is shown")
	for _, role := range []string{"viewer", "redriver"} {
		assert.Contains(t, as(1, role, "order", "skip", work, "7").stderr, "ACCESS_REFUSED")
	}
	as(0, "operator", "order", "retry", work, "7")
	require.Eventually(t, func() bool { return calls.Load() == 2 && shows("permanent: ")() }, patience,
		100*time.Millisecond, "it is blocked again")
	as(0, "operator", "order", "skip", work, "7")
	q.await(q.dead, 1)
	as(0, "operator", "topology", "plan", "--queue", work, "--partitions", "2")
	as(0, "operator", "status", work)
	other := as(2, "operator", "topology", "plan", "--queue", work, "--partitions", "3")
	assert.Contains(t, other.stdout, "x-delivery-limit is 2000512, wanted is 3000512")
}

// TestKeys limits a key in two processes, of which the second one starts later.
func TestKeys(t *testing.T) {
	t.Parallel()
	q := newRoles(t, "--schedule", "1s", "--breaker-key")
	var handled atomic.Int32
	process := func() {
		q.run(retry.Policy{Schedule: backoff.Schedule{time.Second}, Breaker: &retry.Breaker{
			Key: func(msg *message.Message) string { return msg.Metadata.Get("tenant") },
		}}, func(*message.Message) error { handled.Add(1); return nil })
	}
	key := func(code int, args ...string) result {
		t.Helper()
		return q.as(code, "operator", append([]string{"key"}, args...)...)
	}
	shown := func(args ...string) string {
		return start(t, q.environ["operator"], append([]string{"key", "list", "--prefix", q.prefix}, args...)...).wait().stdout
	}
	assert.Contains(t, key(1, "list").stderr, "no process with a handler that has Order.Partitions or Breaker.Key is connected")
	process()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Contains(c, shown(), "no key is limited, and none had to wait")
	}, patience, 100*time.Millisecond)
	paused := key(0, "pause", "7", "--for", "1h")
	assert.Regexp(t, `^7 is paused until .*, in 1 handler of 1 process\n$`, paused.stdout)
	const unseen = "warning: no process has seen a message of the key "
	assert.Equal(t, unseen+"\"7\"\n", paused.stderr, "perhaps the operator has mistyped it")
	q.publish(message.Metadata{"tenant": "7"})
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Zero(c, handled.Load())
		assert.Regexp(c, `(?m)^7 +paused +.* 0 +[1-9][0-9]* +ship `, shown())
	}, patience, 100*time.Millisecond, "the message waits")
	assert.Regexp(t, `(?m)^7 +paused `, q.as(0, "operator", "status", q.work).stdout)
	process()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, 2, strings.Count(shown("--queue", q.work), "paused"))
	}, patience, 100*time.Millisecond, "a process that starts takes it over")
	assert.NotContains(t, key(0, "pause", "7", "--for", "2h").stderr, unseen)
	assert.Contains(t, key(0, "limit", "8", "2", "--for", "7d").stdout, "8 has 2 calls at the same time until ")
	assert.Regexp(t, `(?m)^8 +limited +.* 2 +0 +ship `, key(0, "list").stdout)
	lines := []map[string]any{}
	require.NoError(t, json.Unmarshal([]byte(key(0, "list", "--json").stdout), &lines))
	require.Len(t, lines, 4, "two keys of two processes")
	for _, line := range lines {
		assert.Contains(t, []any{"paused", "limited"}, line["state"])
		assert.Equal(t, map[any]float64{"7": 0, "8": 2}[line["key"]], line["calls"])
	}
	assert.Contains(t, key(1, "list", "--queue", "other").stderr, "has a handler with Breaker.Key on the work queue other")
	assert.Contains(t, key(1, "resume", "9").stderr, `no process has a pause or a limit of yours for the key "9"`)
	for _, role := range []string{"viewer", "redriver"} {
		assert.Contains(t, q.as(1, role, "key", "resume", "7").stderr, "ACCESS_REFUSED")
	}
	assert.Equal(t, "7 is resumed, in 2 handlers of 2 processes\n", key(0, "resume", "7").stdout)
	require.Eventually(t, func() bool { return handled.Load() == 1 }, patience, 10*time.Millisecond)
}

// TestCanaryWithoutConsumer: a canary that no app handles proves nothing.
func TestCanaryWithoutConsumer(t *testing.T) {
	t.Parallel()
	q := declare(t)
	q.timeouts(2)
	redrive := []string{"dead", "redrive", q.work, "--limit", "1", "--canary", "1", "--canary-wait", "100ms"}
	run(t, 0, append(redrive, "--dry-run")...)
	r := run(t, 1, redrive...)
	assert.Contains(t, r.stderr, "the queue \""+q.work+"\" has no consumer: its handler is paused, or its app is down")
	assert.Regexp(t, `(?m)^ +0  sent back`, r.stdout)
	q.await(q.dead, 2)
	_, err := channelOf(t).Consume(q.work, "", false, false, false, false, nil)
	require.NoError(t, err)
	run(t, 0, redrive...)
}
