package adopt

import (
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// A layout is where messages wait: on tiers of the work queue, or on those of a group.
type layout struct {
	group    string
	schedule backoff.Schedule
	jitter   float64
}

// An app has two work queues: one that the library declares, a quorum queue, and a classic one, which has an inbox in a group.
type app []*deployment

func newApp(t *testing.T) app {
	t.Helper()
	orders, mails := newDeployment(t), newDeployment(t)
	mails.prefix, mails.queue = orders.prefix, "mails_"+orders.prefix
	mails.declare()
	for _, d := range []*deployment{orders, mails} {
		d.fails = func(identity string, call int) bool {
			sum := crc32.ChecksumIEEE([]byte(identity))
			return call == 1 && sum%3 == 0 || call == 2 && sum%9 == 0
		}
	}
	return app{orders, mails}
}

// instanceOf is an instance of the work queue with this layout.
func (d *deployment) instanceOf(l layout) *instance {
	i := d.instance(connected)
	i.change = func(c *config.Config) {
		c.Policy.Schedule, c.Policy.Jitter, c.Policy.ExtraTiers = l.schedule, l.jitter, l.schedule
		if l.group != "" {
			c.Policy.TierGroup = l.group + "_" + d.prefix
		}
	}
	return i
}

// start starts an instance of each work queue.
func (a app) start(l layout) (started []*instance) {
	for _, d := range a {
		started = append(started, d.instanceOf(l).start())
	}
	return started
}

func (a app) topologies(l layout) (all []topology.Topology) {
	for _, d := range a {
		all = append(all, d.instanceOf(l).builder().Topology(d.queue))
	}
	return all
}

// tiers are the names of the tier queues of a layout.
func (a app) tiers(l layout) (names []string) {
	for _, t := range a.topologies(l) {
		for _, q := range t.Queues {
			if _, isTier := q.Arguments["x-message-ttl"]; isTier && !strings.HasSuffix(q.Name, ".inbox") {
				names = append(names, q.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// TestMoveToAnotherLayout: instances with the old and the new layout share the work queues, under traffic.
func TestMoveToAnotherLayout(t *testing.T) {
	t.Parallel()
	before, after := backoff.Schedule{300 * time.Millisecond, 3 * time.Second}, backoff.Schedule{300 * time.Millisecond, 2 * time.Second}
	for name, row := range map[string]struct{ from, to layout }{
		"own tiers to a group, with jitter": {layout{"", before, 0}, layout{"shop", after, 0.2}},
		"a group to own tiers":              {layout{"shop", before, 0}, layout{"", before, 0}},
		"another schedule":                  {layout{"", before, 0}, layout{"", after, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newApp(t)
			old := [][]*instance{a.start(row.from), a.start(row.from)}
			var traffics []*traffic
			for _, d := range a {
				traffics = append(traffics, d.send(300))
			}
			work(t, 10, slices.Concat(old...)...)

			// Step 1: every instance gets the new layout, one after the other.
			updated := a.start(row.to)
			work(t, 10, slices.Concat(old[0], old[1], updated)...)
			broker.Eventually(t, patience, func() bool {
				return !slices.ContainsFunc(slices.Concat(old[0], updated), func(i *instance) bool { return i.retried.Len() == 0 || i.returned.Load() == 0 })
			}, "instances with both layouts retry, and process what comes back")
			stop(old[0])
			second := a.start(row.to)
			work(t, 10, slices.Concat(old[1], updated, second)...)
			retired := slices.DeleteFunc(a.tiers(row.from), func(name string) bool { return slices.Contains(a.tiers(row.to), name) })
			a[0].waitUntilReady(retired...)
			stop(old[1])

			// Step 2: nothing waits on the old tiers.
			a[0].waitUntilEmpty(retired...)

			// Step 3: the old tiers go, and nothing declares them again.
			store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Prefix: a[0].prefix,
				Management: broker.ManagementURL(t)}, nil)
			require.NoError(t, err)
			broker.Eventually(t, patience, func() bool { // the broker's numbers of messages come late
				pruned, err := store.Prune(t.Context(), deadletter.Prune{Current: a.topologies(row.to)})
				require.NoError(t, err)
				return len(pruned.Left) == 0
			}, "nothing is left")
			require.NoError(t, store.Close())
			for _, f := range traffics {
				f.more(60)
			}
			work(t, 40, slices.Concat(updated, second)...)

			current := append(a.tiers(row.to), a[0].prefix+".orphans")
			for i, d := range a {
				current = append(current, d.queue, d.queue+".dead")
				if row.to.group != "" && i == 1 {
					current = append(current, d.queue+"."+d.prefix+".inbox")
				}
			}
			assert.ElementsMatch(t, current, slices.Collect(maps.Keys(a[0].list())), "the queues of the new layout only")
			if row.from.group != row.to.group && row.from.group != "" {
				exchanges, err := broker.Management(t).ListExchanges()
				require.NoError(t, err)
				for _, e := range exchanges {
					assert.False(t, strings.HasPrefix(e.Name, row.from.group+"_"+a[0].prefix), e.Name)
				}
			}
			for _, f := range traffics {
				f.cancel()
			}
			for i, d := range a {
				empty := append(a.tiers(row.to), d.queue, d.queue+".dead", d.prefix+".orphans")
				if row.to.group != "" && i == 1 {
					empty = append(empty, d.queue+"."+d.prefix+".inbox")
				}
				d.balance(traffics[i], empty...)
				assert.Empty(t, d.processed.Twice())
			}
		})
	}
}
