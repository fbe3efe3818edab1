package declare_test

import (
	"context"
	"errors"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// A layouts test declares topologies of work queues, whose names no other test uses.
type layouts struct {
	t    *testing.T
	name string
}

func newLayouts(t *testing.T) layouts {
	t.Helper()
	l := layouts{t, broker.Name(t, "retire")}
	broker.Clean(t, l.name)
	return l
}

// of returns the topology of a work queue, with tiers of its own where the group is empty.
func (l layouts) of(queue, group string, tiers ...time.Duration) topology.Topology {
	return l.existing(queue, group, nil, tiers...)
}

// existing is of for a work queue that exists with these arguments. Nil: it does not exist.
func (l layouts) existing(queue, group string, arguments amqp091.Table, tiers ...time.Duration) topology.Topology {
	config := topology.Config{Prefix: l.name, Tiers: backoff.Schedule(tiers).Tiers()}
	if group != "" {
		config.TierGroup = l.queue(group)
	}
	if arguments != nil {
		config.WorkQueueMode = topology.Leave
	}
	return topology.New(config, topology.Queue{Name: l.queue(queue), Durable: true, Arguments: arguments})
}

func (l layouts) queue(base string) string { return base + "_" + l.name }

func (l layouts) tier(group, word string) string { return l.queue(group) + "." + l.name + "." + word }

func (l layouts) declare(topologies ...topology.Topology) {
	l.t.Helper()
	for _, t := range topologies {
		broker.Declare(l.t, t.Declare)
	}
}

func (l layouts) retire(config topology.RetireConfig) (left []string) {
	l.t.Helper()
	left, err := topology.Retire(l.t.Context(), broker.Connect(l.t), config)
	require.NoError(l.t, err)
	return left
}

// waiting returns the number of messages on each queue, by the management API.
func (l layouts) waiting(ctx context.Context) (map[string]int, error) {
	client, err := management.New(broker.ManagementURL(l.t), management.Broker{Vhost: "/"})
	if err != nil {
		return nil, err
	}
	queues, err := client.Queues(ctx, management.Depths)
	messages := map[string]int{}
	for name, queue := range queues {
		if queue.Stated {
			messages[name] = queue.Messages
		}
	}
	return messages, err
}

// none is what waiting returns when nothing waits on topologies.
func none(topologies ...topology.Topology) func(context.Context) (map[string]int, error) {
	return func(context.Context) (map[string]int, error) {
		messages := map[string]int{}
		for _, t := range topologies {
			for _, q := range t.Queues {
				messages[q.Name] = 0
			}
		}
		return messages, nil
	}
}

// known waits until the broker states how many messages are on the tiers.
func (l layouts) known(topologies []topology.Topology) {
	l.t.Helper()
	broker.Eventually(l.t, soon, func() bool {
		messages, err := l.waiting(l.t.Context())
		for _, t := range topologies {
			for _, q := range t.Queues {
				if _, known := messages[q.Name]; !known {
					return false
				}
			}
		}
		return err == nil
	}, "the number of messages on each queue is known")
}

// TestRetireLeavesMessages: those that wait, and those that no work queue takes, which AMQP does not show.
func TestRetireLeavesMessages(t *testing.T) {
	t.Parallel()
	full := amqp091.Table{"x-queue-type": "quorum", "x-max-length": int64(1), "x-overflow": "reject-publish"}
	l := newLayouts(t)
	config := topology.RetireConfig{Messages: l.waiting}
	for queue, group := range map[string]string{"orders": "", "mails": "shop"} {
		var without amqp091.Table
		if group != "" {
			without = amqp091.Table{"x-queue-type": "quorum"} // without an inbox, which would take them
		}
		old := l.existing(queue, group, without, 100*time.Millisecond, time.Second, time.Hour)
		old.WorkQueue.Arguments = full
		current := l.existing(queue, "other", full, time.Second)
		l.declare(old, current)
		testapp.Saturate(t, old.WorkQueue.Name)
		testapp.Send(t, old.Exchange(), "100ms."+old.WorkQueue.Name, make([]amqp091.Publishing, 20)...)
		testapp.Send(t, old.Exchange(), "1h."+old.WorkQueue.Name, amqp091.Publishing{})
		config.Old, config.Current = append(config.Old, old), append(config.Current, current)
	}
	wait := func() {
		t.Helper()
		for _, group := range []string{"orders", "shop"} {
			broker.Eventually(t, soon, func() bool {
				messages, err := l.waiting(t.Context())
				return err == nil && messages[l.tier(group, "1h")] == 1 && messages[l.tier(group, "100ms")] > 0 &&
					testapp.Depth(t, l.tier(group, "100ms")) == 0
			}, "messages wait, and the delay of others is over")
		}
	}
	wait()
	l.known(config.Old)
	left := l.retire(config)
	assert.ElementsMatch(t, []string{
		l.tier("orders", "100ms"), l.tier("orders", "1h"), l.tier("shop", "100ms"), l.tier("shop", "1s"), l.tier("shop",
			"1h"),
	}, left, "the tiers of a group are deleted together")
	wait()
}

// TestRetireLeavesTheTiersOfAGroupInUse: by a work queue that it was not told of, or by one with another schedule.
func TestRetireLeavesTheTiersOfAGroupInUse(t *testing.T) {
	t.Parallel()
	l := newLayouts(t)
	second, both := []time.Duration{time.Second}, []time.Duration{time.Second, time.Hour}
	orders, mails := l.of("orders", "shop", second...), l.of("mails", "shop", second...)
	bills, parcels := l.of("bills", "store", second...), l.of("parcels", "store", both...)
	before, after := l.of("visits", "sites", both...), l.of("visits", "sites", second...)
	notes, shorter := l.of("notes", "desk", both...), l.of("notes", "desk", second...)
	old := []topology.Topology{orders, mails, bills, parcels, notes}
	current := []topology.Topology{l.of("orders", "", second...), l.of("mails", "", second...),
		l.of("bills", "", second...), l.of("parcels", "", second...), l.of("notes", "", second...), after}
	l.declare(append(old, before)...)
	l.declare(current...)
	nothing := none(append(old, before)...)
	left := l.retire(topology.RetireConfig{Old: []topology.Topology{orders, parcels, before, shorter},
		Current: current, Messages: nothing})
	assert.ElementsMatch(t,
		[]string{l.tier("shop", "1s"), l.tier("store", "1s"), l.tier("store", "1h"), l.tier("sites", "1h"),
			l.tier("desk", "1s"), l.tier("desk", "1h")}, left,
		"mails and bills are bound to their groups, another work queue may have the schedule of visits, and no topology "+
			"of Old has a tier of desk")
	for queue, group := range map[string]topology.Topology{"mails": mails, "bills": bills, "visits": before} {
		testapp.Send(t, group.Exchange(), "1s."+l.queue(queue), amqp091.Publishing{}) // mandatory and confirmed
		testapp.Take(t, l.queue(queue), 1)
	}

	assert.Empty(t, l.retire(topology.RetireConfig{Old: append(old, before), Current: current, WholeGroups: true,
		Messages: nothing}), "told of all")
	for _, tier := range []string{l.tier("shop", "1s"), l.tier("store", "1s"), l.tier("store", "1h"), l.tier("sites", "1h")} {
		assert.False(t, testapp.Exists(t, tier), tier)
	}
	for _, queue := range current {
		testapp.Send(t, queue.Exchange(), "1s."+queue.WorkQueue.Name, amqp091.Publishing{})
	}
}

// TestRetireWithoutNumbers deletes classic tiers only: the broker itself leaves those with messages.
func TestRetireWithoutNumbers(t *testing.T) {
	t.Parallel()
	for _, queueType := range []topology.QueueType{topology.Quorum, topology.Classic} {
		l := newLayouts(t)
		config := topology.Config{Prefix: l.name, Tiers: backoff.Schedule{time.Second, time.Hour}.Tiers(), QueueType: queueType}
		old := topology.New(config, topology.Queue{Name: l.queue("orders"), Durable: true})
		l.declare(old)
		testapp.Send(t, old.Exchange(), "1h."+l.queue("orders"), amqp091.Publishing{})
		want := []string{l.tier("orders", "1h")}
		if queueType == topology.Quorum {
			want = append(want, l.tier("orders", "1s"))
		}
		assert.Equal(t, want, l.retire(topology.RetireConfig{Old: []topology.Topology{old}}))
	}
}

func TestRetireReportsFaults(t *testing.T) {
	t.Parallel()
	l := newLayouts(t)
	connection := broker.Connect(t)
	_, err := topology.Retire(t.Context(), connection, topology.RetireConfig{})
	require.ErrorContains(t, err, "RetireConfig.Old is empty")
	_, err = topology.Retire(t.Context(), connection, topology.RetireConfig{Old: []topology.Topology{l.of("orders", "")}})
	require.ErrorContains(t, err, "Tiers")
	old := l.of("orders", "", time.Second)
	l.declare(old)
	_, err = topology.Retire(t.Context(), connection, topology.RetireConfig{
		Old: []topology.Topology{old}, Messages: func(context.Context) (map[string]int, error) {
			return nil,
				errors.New("401")
		},
	})
	require.EqualError(t, err, "RetireConfig.Messages: 401")
	ctx, cancel := context.WithCancel(t.Context())
	_, err = topology.Retire(ctx, connection, topology.RetireConfig{
		Old: []topology.Topology{old}, Messages: func(context.Context) (map[string]int, error) {
			cancel()
			return map[string]int{l.tier("orders", "1s"): 0}, nil
		},
	})
	require.ErrorIs(t, err, context.Canceled)
}
