package topology

import (
	"slices"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
)

// plan finds what is to be deleted.
func (r *retirement) plan() {
	kept := map[string]bool{}
	for _, t := range r.Current {
		for _, queue := range append(t.Queues, t.WorkQueue) {
			kept[queue.Name] = true
		}
		if t.grouped() { // a work queue that exists with other arguments can have one
			kept[t.config.prefix().InboxQueue(t.WorkQueue.Name)] = true
		}
	}
	add := func(to *[]retired, queues ...retired) {
		for _, q := range queues {
			if !kept[q.Name] {
				kept[q.Name] = true
				*to = append(*to, q)
			}
		}
	}
	for _, t := range r.Old {
		if !t.grouped() {
			add(&r.own, t.retiredTiers(false)...)
			continue
		}
		add(&r.own, t.retiredInbox())
		if slices.ContainsFunc(r.Current, t.sharesTiers) {
			add(&r.own, t.retiredTiers(!r.WholeGroups)...)
			continue
		}
		out := t.config.prefix().GroupReturnExchange(t.Group())
		if r.groups[out] == nil {
			r.groups[out] = &retiredGroup{in: t.exchangeNamed(t.Exchange()), out: t.exchangeNamed(out)}
		}
		add(&r.groups[out].tiers, t.retiredTiers(false)...)
	}
}

// all returns the queues that may be deleted.
func (r *retirement) all() []retired {
	all := slices.Clone(r.own)
	for _, group := range r.groups {
		all = append(all, group.tiers...)
	}
	return all
}

// grouped reports whether the work queue shares its tiers.
func (t Topology) grouped() bool { return t.Group() != t.WorkQueue.Name }

// sharesTiers reports whether two topologies have the same group of work queues.
func (t Topology) sharesTiers(other Topology) bool {
	return t.grouped() && other.grouped() && t.Exchange() == other.Exchange()
}

func (t Topology) exchangeNamed(name string) Exchange {
	return t.Exchanges[slices.IndexFunc(t.Exchanges, func(e Exchange) bool { return e.Name == name })]
}

func (t Topology) retiredTiers(blocked bool) (tiers []retired) {
	n, work := t.config.prefix(), t.WorkQueue.Name
	for _, tier := range t.config.Tiers {
		name := n.TierQueue(t.Group(), tier)
		at := slices.IndexFunc(t.Queues, func(q Queue) bool { return q.Name == name })
		q := retired{Queue: t.Queues[at], blocked: blocked}
		if t.grouped() {
			q.before = []Binding{{Exchange: t.Exchange(), Queue: name, Key: naming.TierKeys(tier)}}
		} else {
			q.before = []Binding{{Exchange: t.Exchange(), Queue: name, Key: naming.RetryKey(work, tier)}}
			q.after = []Binding{{Exchange: n.ReturnExchange(), Queue: work, Key: naming.RetryKey(work, tier)}}
		}
		tiers = append(tiers, q)
	}
	return tiers
}

// retiredInbox returns the inbox of a work queue also if the topology does not have it: its work queue can exist with
// other arguments.
func (t Topology) retiredInbox() retired {
	n, work := t.config.prefix(), t.WorkQueue.Name
	return retired{
		Queue: Queue{Name: n.InboxQueue(work), Durable: true, Arguments: tierArguments(n.ReturnExchange(), 0, Quorum)},
		after: []Binding{{Exchange: n.ReturnExchange(), Queue: work, Key: naming.InboxKey(work)}},
	}
}
