package deadletter_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// TestDrainedRetriesGoOn: messages that a drain brings back are handled at once, and have the failures that they had.
func TestDrainedRetriesGoOn(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]string{"own tiers": "", "group": "shop"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app := testapp.New(t, func(c *config.Config) {
				c.Policy.Schedule = backoff.Schedule{time.Hour}
				if group != "" {
					c.Policy.TierGroup = group + "_" + broker.Name(t, "g")
					c.Policy.ExtraTiers = c.Policy.Schedule
					broker.Clean(t, c.Policy.TierGroup)
				}
			})
			queue := app.Queue("orders")
			dead := testapp.NewLedger()
			app.Handle(queue, 4, func(msg *message.Message) error { return errors.New("the provider is down") })
			app.Run()
			testapp.Send(t, "", queue, testapp.Orders(40)...)
			queues := app.Topology(queue).Queues
			tier := queues[slices.IndexFunc(queues, func(q topology.Queue) bool { return strings.HasSuffix(q.Name, ".1h") })].Name
			broker.Eventually(t, 60*time.Second, func() bool { return testapp.Depth(t, tier) == 40 }, "all messages wait")

			store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Prefix: app.Name}, nil)
			require.NoError(t, err)
			defer func() { require.NoError(t, store.Close()) }()
			summary, err := store.Drain(t.Context(), tier, letters.Redrive{DryRun: true})
			require.NoError(t, err)
			assert.Equal(t, letters.Summary{Total: 40, Done: 40}, summary)
			summary, err = store.Drain(t.Context(), tier, letters.Redrive{})
			require.NoError(t, err)
			assert.Equal(t, letters.Summary{Total: 40, Done: 40}, summary)
			for _, letter := range testapp.Take(t, queue+".dead", 40) {
				dead.Add(string(letter.Body))
				assert.Equal(t, "2", letter.Headers["retry_failures"], "the failure before the drain, and the one after it")
			}
			assert.Empty(t, dead.Twice())
			assert.Zero(t, testapp.Depth(t, tier))
		})
	}
}

// TestPrune removes what is empty. It leaves messages that wait, and those that no work queue takes.
func TestPrune(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	h := time.Hour
	classic := topology.New(topology.Config{Prefix: b.name, Tiers: backoff.Schedule{h, 2 * h}.Tiers(),
		QueueType: topology.Classic}, topology.Queue{Name: b.queue("old"), Durable: true})
	b.declare(b.of("orders", "", h, 2*h, 3*h), classic, b.of("gone", "", h), b.of("quiet", "shop", h, 2*h),
		b.of("other", "shop", h, 2*h), b.of("last", "left", h, 2*h))
	b.wait(b.of("orders", "", h), "3h", "a", "b")
	for _, queue := range []string{b.queue("gone"), b.queue("gone") + ".dead", b.queue("last")} {
		testapp.Delete(t, queue)
	}
	full, wait := b.full()
	now := deadletter.Prune{Current: append(full, b.of("orders", "", 2*h), b.of("old", "", 2*h),
		b.of("quiet", "shop", 2*h))}
	store := b.store()
	broker.Eventually(t, 60*time.Second, func() bool {
		status, err := store.Status(t.Context(), b.queue("orders"))
		return err == nil && len(status.Queues[0].Tiers) == 3 && status.Queues[0].Tiers[2].Messages == 2
	}, "the figures of the management API")
	wait()
	b.known()
	dry := now
	dry.DryRun = true
	planned, err := store.Prune(t.Context(), dry)
	require.NoError(t, err)
	want := deadletter.Pruned{
		Removed: []string{b.tier("gone", "1h"), b.tier("left", "1h"), b.tier("left", "2h"), b.tier("orders", "1h"),
			b.tier("old", "1h"), b.tier("shop", "1h"), b.tier("full", "1s")},
		Left: []string{b.tier("orders", "3h"), b.tier("full", "100ms"), b.tier("full", "1h"), b.tier("packed", "100ms"),
			b.tier("packed", "1s"), b.tier("packed", "1h")}, // the tiers of a group are removed together
	}
	slices.Sort(want.Removed)
	slices.Sort(want.Left)
	assert.Equal(t, want, planned)
	pruned, err := store.Prune(t.Context(), now)
	require.NoError(t, err)
	assert.Equal(t, want, pruned)
	again, err := store.Prune(t.Context(), dry)
	require.NoError(t, err)
	assert.Equal(t, deadletter.Pruned{Left: want.Left}, again, "the removed tiers are gone")
	wait()
	b.wait(b.of("orders", "", h), "2h", "c")
	b.wait(b.of("quiet", "shop", h), "2h", "d")
	b.wait(b.of("other", "shop", h), "2h", "e")
	assert.Equal(t, []int{1, 2}, []int{testapp.Depth(t, b.tier("orders", "2h")), testapp.Depth(t, b.tier("shop", "2h"))},
		"the other tiers still get messages")

	summary, err := store.Drain(t.Context(), b.tier("orders", "3h"), letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, 2, summary.Done)
	assert.Equal(t, 2, testapp.Depth(t, b.queue("orders")))
	broker.Eventually(t, 60*time.Second, func() bool {
		planned, err := store.Prune(t.Context(), dry)
		return err == nil && slices.Contains(planned.Removed, b.tier("orders", "3h"))
	}, "the drained tier is empty")
}

// known waits until the broker states how many messages are on each queue of the board.
func (b board) known() {
	b.t.Helper()
	client := managementOf(b.t)
	broker.Eventually(b.t, soon, func() bool {
		queues, err := client.Queues(b.t.Context(), management.Depths)
		for name, queue := range queues {
			if strings.Contains(name, b.name) && !queue.Stated {
				return false
			}
		}
		return err == nil
	}, "the numbers of messages are known")
}

// full declares work queues that take no message, and have messages on their tiers: some whose delay is not over, and
// some whose delay is over, which AMQP does not show. It returns their topologies, and a wait until the broker states
// the messages.
func (b board) full() (current []topology.Topology, wait func()) {
	b.t.Helper()
	full := amqp091.Table{"x-queue-type": "quorum", "x-max-length": int64(1), "x-overflow": "reject-publish"}
	for queue, group := range map[string]string{"full": "", "mails": "packed"} {
		old := b.of(queue, group, 100*time.Millisecond, time.Second, time.Hour)
		if group != "" { // without an inbox, which would take them
			old = b.existing(queue, group, amqp091.Table{"x-queue-type": "quorum"}, 100*time.Millisecond, time.Second, time.Hour)
		}
		old.WorkQueue.Arguments = full
		now := b.existing(queue, "elsewhere", full, time.Second)
		b.declare(old, now)
		current = append(current, now)
		testapp.Saturate(b.t, old.WorkQueue.Name)
		testapp.Send(b.t, old.Exchanges[0].Name, "100ms."+old.WorkQueue.Name, make([]amqp091.Publishing, 20)...)
		testapp.Send(b.t, old.Exchanges[0].Name, "1h."+old.WorkQueue.Name, amqp091.Publishing{})
	}
	return current, func() {
		b.t.Helper()
		for _, group := range []string{"full", "packed"} {
			broker.Eventually(b.t, 60*time.Second, func() bool {
				queues, err := broker.Management(b.t).ListQueues()
				messages := map[string]int{}
				for _, q := range queues {
					messages[q.Name] = q.Messages
				}
				return err == nil && messages[b.tier(group, "1h")] == 1 && messages[b.tier(group, "100ms")] > 0 &&
					testapp.Depth(b.t, b.tier(group, "100ms")) == 0
			}, "messages wait, and the delay of others is over")
		}
	}
}
