package declare_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
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

// wait publishes copies that wait on a tier.
func (l layouts) wait(t topology.Topology, key string, messages int) {
	l.t.Helper()
	channel := broker.Channel(l.t)
	require.NoError(l.t, channel.Confirm(false))
	for range messages {
		confirm, err := channel.PublishWithDeferredConfirm(t.Exchange(), key, true, false,
			amqp091.Publishing{DeliveryMode: amqp091.Persistent})
		require.NoError(l.t, err)
		require.True(l.t, confirm.Wait())
	}
}

// fill publishes to a queue until it refuses: a quorum queue tells its publishers only after it is full, and takes more
// meanwhile.
func (l layouts) fill(queue string) {
	l.t.Helper()
	channel := broker.Channel(l.t)
	require.NoError(l.t, channel.Confirm(false))
	for range 100 {
		confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, amqp091.Publishing{})
		require.NoError(l.t, err)
		if !confirm.Wait() {
			return
		}
	}
	require.Fail(l.t, "the queue took 100 messages", queue)
}

func (l layouts) retire(config topology.RetireConfig) (left []string) {
	l.t.Helper()
	left, err := topology.Retire(l.t.Context(), broker.Connect(l.t), config)
	require.NoError(l.t, err)
	return left
}

// waiting returns the number of messages on each queue, by the management API.
func (l layouts) waiting(ctx context.Context) (map[string]int, error) {
	client := broker.Management(l.t)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		client.Endpoint+"/api/queues/%2F?columns=name,messages", nil)
	if err != nil {
		return nil, err
	}
	request.SetBasicAuth(client.Username, client.Password)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	var queues []struct {
		Name     string
		Messages *int
	}
	if err := json.NewDecoder(response.Body).Decode(&queues); err != nil {
		return nil, err
	}
	messages := map[string]int{}
	for _, queue := range queues {
		if queue.Messages != nil {
			messages[queue.Name] = *queue.Messages
		}
	}
	return messages, nil
}

// names returns the names that exist, without the test's own part.
func (l layouts) names() (queues, exchanges, bindings []string) {
	l.t.Helper()
	client := broker.Management(l.t)
	short := func(name string) string {
		return strings.ReplaceAll(strings.ReplaceAll(name, "_"+l.name, ""), l.name, "retry")
	}
	allQueues, err := client.ListQueues()
	require.NoError(l.t, err)
	for _, q := range allQueues {
		if strings.Contains(q.Name, l.name) {
			queues = append(queues, short(q.Name))
		}
	}
	allExchanges, err := client.ListExchanges()
	require.NoError(l.t, err)
	for _, e := range allExchanges {
		if strings.Contains(e.Name, l.name) {
			exchanges = append(exchanges, short(e.Name))
		}
	}
	allBindings, err := client.ListBindings()
	require.NoError(l.t, err)
	for _, b := range allBindings {
		if b.Source != "" && strings.Contains(b.Destination, l.name) {
			bindings = append(bindings, short(b.Source)+" "+short(b.RoutingKey)+" "+short(b.Destination))
		}
	}
	return queues, exchanges, bindings
}

// equal waits until exactly the objects of topologies exist: the management API can be late.
func (l layouts) equal(topologies ...topology.Topology) {
	l.t.Helper()
	other := newLayouts(l.t)
	topologies = slices.Clone(topologies)
	for i, t := range topologies {
		group := ""
		if t.Group() != t.WorkQueue.Name {
			group = strings.TrimSuffix(t.Group(), "_"+l.name)
		}
		var tiers []time.Duration
		for _, q := range t.Queues {
			word, isTier := strings.CutPrefix(q.Name, t.Group()+"."+l.name+".")
			if tier, err := backoff.ParseTier(word); isTier && err == nil {
				tiers = append(tiers, time.Duration(tier))
			}
		}
		topologies[i] = other.of(strings.TrimSuffix(t.WorkQueue.Name, "_"+l.name), group, tiers...)
	}
	other.declare(topologies...)
	broker.Eventually(l.t, soon, func() bool {
		queues, exchanges, bindings := l.names()
		wantQueues, wantExchanges, wantBindings := other.names()
		return assert.ElementsMatch(&silent{}, wantQueues, queues) &&
			assert.ElementsMatch(&silent{}, wantExchanges, exchanges) &&
			assert.ElementsMatch(&silent{}, wantBindings, bindings)
	}, "exactly the current objects exist")
}

type silent struct{}

func (*silent) Errorf(string, ...any) {}

// TestRetireDeletesWhatCurrentDoesNotHave: after it, the broker has what it has where only the current topologies were
// declared.
func TestRetireDeletesWhatCurrentDoesNotHave(t *testing.T) {
	t.Parallel()
	type row struct {
		layouts
		what         string
		old, current []topology.Topology
	}
	var rows []row
	add := func(what string, of func(l layouts) (old, current []topology.Topology)) {
		r := row{layouts: newLayouts(t), what: what}
		r.old, r.current = of(r.layouts)
		r.declare(r.old...)
		r.declare(r.current...)
		rows = append(rows, r)
	}
	add("from own tiers to a group", func(l layouts) (old, current []topology.Topology) {
		return []topology.Topology{l.of("orders", "", time.Second, time.Hour)}, []topology.Topology{l.of("orders", "shop",
			time.Second)}
	})
	add("from a group to own tiers", func(l layouts) (old, current []topology.Topology) {
		return []topology.Topology{l.of("orders", "shop", time.Second, time.Hour), l.of("mails", "shop", time.Second)},
			[]topology.Topology{l.of("orders", "", time.Second), l.of("mails", "", time.Minute)}
	})
	add("from a group to another", func(l layouts) (old, current []topology.Topology) {
		return []topology.Topology{l.of("orders", "shop", time.Second)}, []topology.Topology{l.of("orders", "store",
			time.Second)}
	})
	add("another schedule", func(l layouts) (old, current []topology.Topology) {
		return []topology.Topology{l.of("orders", "", time.Second, time.Hour)}, []topology.Topology{l.of("orders", "",
			time.Second, time.Minute)}
	})
	add("another schedule in a group", func(l layouts) (old, current []topology.Topology) {
		return []topology.Topology{l.of("orders", "shop", time.Second, time.Hour)},
			[]topology.Topology{l.of("orders", "shop", time.Second, time.Minute), l.of("mails", "shop", time.Second)}
	})
	config := topology.RetireConfig{WholeGroups: true, Messages: rows[0].waiting}
	for _, r := range rows {
		config.Old = append(config.Old, r.old...)
		config.Current = append(config.Current, r.current...)
	}
	rows[0].known(config.Old)
	assert.Empty(t, rows[0].retire(config))
	for _, r := range rows {
		t.Log(r.what)
		r.equal(r.current...)
	}
	assert.Empty(t, rows[0].retire(config), "again")
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
		l.fill(old.WorkQueue.Name)
		l.wait(old, "100ms."+old.WorkQueue.Name, 20)
		l.wait(old, "1h."+old.WorkQueue.Name, 1)
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
	old := []topology.Topology{orders, mails, bills, parcels}
	current := []topology.Topology{l.of("orders", "", second...), l.of("mails", "", second...),
		l.of("bills", "", second...), l.of("parcels", "", second...), after}
	l.declare(append(old, before)...)
	l.declare(current...)
	l.known(append(old, before))

	left := l.retire(topology.RetireConfig{Old: []topology.Topology{orders, parcels, before}, Current: current,
		Messages: l.waiting})
	assert.ElementsMatch(t,
		[]string{l.tier("shop", "1s"), l.tier("store", "1s"), l.tier("store", "1h"), l.tier("sites", "1h")}, left,
		"mails and bills are bound to their groups, and another work queue may have the schedule of visits")
	for queue, group := range map[string]topology.Topology{"mails": mails, "bills": bills, "visits": before} {
		l.wait(group, "1s."+l.queue(queue), 1) // mandatory and confirmed
		testapp.Take(t, l.queue(queue), 1)
	}
	left = l.retire(topology.RetireConfig{Old: []topology.Topology{bills}, Current: current, Messages: l.waiting})
	assert.ElementsMatch(t, []string{l.tier("store", "1s"), l.tier("store", "1h")}, left,
		"a tier that no topology of Old has")

	broker.Eventually(t, 2*soon, func() bool {
		config := topology.RetireConfig{Old: append(old, before), Current: current, WholeGroups: true, Messages: l.waiting}
		return len(l.retire(config)) == 0
	}, "told of all")
	l.equal(current...)
}

// TestRetireWithoutNumbers deletes classic tiers only: the broker itself leaves those with messages.
func TestRetireWithoutNumbers(t *testing.T) {
	t.Parallel()
	for _, queueType := range []topology.QueueType{topology.Quorum, topology.Classic} {
		l := newLayouts(t)
		config := topology.Config{Prefix: l.name, Tiers: backoff.Schedule{time.Second, time.Hour}.Tiers(), QueueType: queueType}
		old := topology.New(config, topology.Queue{Name: l.queue("orders"), Durable: true})
		l.declare(old)
		l.wait(old, "1h."+l.queue("orders"), 1)
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
