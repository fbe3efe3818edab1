package deadletter

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/each"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Status returns the state of work queues, without names that of all. It needs Config.Management. Ready and Consumers
// of up to 200 queues are those of this moment: of orphans and dead letters first, then of work queues, then of
// partitions, then of tiers. All other figures are those of the management API, which are up to ten seconds old. For
// three seconds at most Status waits for the newer ones. Stray has also the tiers of groups without a work queue.
func (s *Store) Status(ctx context.Context, works ...string) (letters.Status, error) {
	ctx, end, err := s.life.Begin(ctx)
	if err != nil {
		return letters.Status{}, err
	}
	defer end()
	b, err := s.readBoard(ctx, nil)
	if err != nil {
		return letters.Status{}, err
	}
	works, stray := b.choose(works)
	s.refresh(ctx, b.queues, b.inOrder(works, stray))
	if ctx.Err() != nil {
		return letters.Status{}, context.Cause(ctx)
	}
	return b.status(works, stray), nil
}

// readBoard asks for the queues and the bindings at the same time: of thousands of them each takes a second.
func (s *Store) readBoard(ctx context.Context, current []topology.Topology) (*board, error) {
	client, err := s.managementClient()
	if err != nil {
		return nil, err
	}
	b := &board{client: client, prefix: s.prefix, current: current, groups: map[string]string{}, has: map[string]bool{},
		judged: map[string]bool{}, tiers: map[owner][]letters.Tier{}}
	var bound sync.WaitGroup
	var also error
	bound.Go(func() { b.bindings, also = client.Bindings(ctx) })
	b.queues, err = client.Queues(ctx, management.Details)
	bound.Wait()
	b.readGroups()
	b.readTiers()
	return b, cmp.Or(err, also)
}

// Queues returns the names of all queues of the virtual host, sorted. It needs Config.Management.
func (s *Store) Queues(ctx context.Context) ([]string, error) {
	client, err := s.managementClient()
	if err != nil {
		return nil, err
	}
	queues, err := client.Queues(ctx, management.Names)
	return slices.Sorted(maps.Keys(queues)), err
}

// A board is what the management API shows of a virtual host.
type board struct {
	client   *management.Client
	prefix   naming.Prefix
	queues   map[string]management.Queue
	bindings map[management.Binding]bool
	current  []topology.Topology // see Prune.Current

	tiers  map[owner][]letters.Tier // without their numbers
	groups map[string]string        // the group of each work queue
	has    map[string]bool          // tiers of current
	judged map[string]bool          // work queues and groups of current
}

// An owner is a work queue that has tiers, or a group: another app can name its group like a work queue.
type owner struct {
	name    string
	isGroup bool
}

// choose returns the names of the work queues that are asked for, without names those of all, and then the stray tiers.
func (b *board) choose(works []string) (chosen, stray []string) {
	if len(works) > 0 {
		return slices.Compact(slices.Sorted(slices.Values(works))), nil
	}
	known := b.works()
	chosen = slices.Sorted(maps.Keys(known))
	for _, group := range b.groups {
		known[group] = true
	}
	for of, tiers := range b.tiers {
		for _, t := range tiers {
			if !known[of.name] {
				stray = append(stray, t.Queue)
			}
		}
	}
	slices.Sort(stray)
	return chosen, stray
}

func (b *board) status(works, stray []string) letters.Status {
	status := letters.Status{At: time.Now(), Orphans: b.depth(b.prefix.Orphans()), Stray: each.Of(stray, b.depth)}
	status.Queues = each.Of(works, func(name string) letters.WorkQueue { return b.work(name, status.At) })
	return status
}

// readGroups finds the group of each work queue, and what current has.
func (b *board) readGroups() {
	for at := range b.bindings {
		if group, isGroup := b.prefix.GroupOfReturn(at.Exchange); isGroup && at.Key == naming.MemberKey(at.Queue) {
			b.groups[at.Queue] = group
		}
	}
	for _, t := range b.current {
		work := t.WorkQueue.Name
		delete(b.groups, work)
		for _, e := range t.Exchanges {
			if group, isGroup := b.prefix.GroupOfReturn(e.Name); isGroup {
				b.groups[work], b.judged[group] = group, true
			}
		}
		b.judged[work] = true
		for _, q := range t.Queues {
			b.has[q.Name] = true
		}
	}
}

// readTiers finds the tiers. A queue with the name of a tier is one if its messages go to a return exchange.
func (b *board) readTiers() {
	for name, q := range b.queues {
		group, delay, isTier := b.prefix.TierOf(name)
		through := q.Arguments[queuearg.DeadLetterExchange]
		own, shared := b.prefix.ReturnExchange(), b.prefix.GroupReturnExchange(group)
		if !isTier || through != own && through != shared {
			continue
		}
		tier := letters.Tier{Depth: letters.Depth{Queue: name}, Delay: time.Duration(delay), Overdue: q.Expired}
		key := naming.RetryKey(group, delay)
		needs := []management.Binding{{Exchange: b.prefix.RetryExchange(), Queue: name, Key: key},
			{Exchange: own, Queue: group, Key: key}}
		if through == shared {
			tier.Group = group
			needs = []management.Binding{{Exchange: b.prefix.GroupExchange(group), Queue: name, Key: naming.TierKeys(delay)}}
		}
		tier.Retired = slices.ContainsFunc(needs, func(at management.Binding) bool { return !b.bindings[at] })
		if b.judged[group] {
			tier.Retired = !b.has[name]
		}
		of := owner{group, through == shared}
		b.tiers[of] = append(b.tiers[of], tier)
	}
	for _, of := range b.tiers {
		slices.SortFunc(of, func(x, y letters.Tier) int { return cmp.Compare(x.Delay, y.Delay) })
	}
}

// works returns the names of the work queues: those with a dead-letter queue, those that are bound, and those that
// exist and have tiers.
func (b *board) works() map[string]bool {
	works := map[string]bool{}
	for name := range b.queues {
		if work := naming.WorkQueueOf(name); work != name {
			works[work] = true
		}
		if len(b.tiers[owner{name: name}]) > 0 {
			works[name] = true
		}
	}
	for name := range b.groups {
		works[name] = true
	}
	for at := range b.bindings {
		if at.Exchange == b.prefix.AnyReturnExchange() && at.Key == naming.AnyReturnKey(at.Queue) {
			works[at.Queue] = true
		}
	}
	delete(works, "")
	return works
}

// tiersOf returns the tiers that a work queue has, or its group.
func (b *board) tiersOf(work string) []letters.Tier {
	return slices.Concat(b.tiers[owner{name: work}], b.tiers[owner{b.groups[work], true}])
}

// partitions returns the queues of the partitions of a work queue.
func (b *board) partitions(work string) (all []string) {
	for {
		name := naming.PartitionQueue(work, len(all))
		if _, exists := b.queues[name]; !exists {
			return all
		}
		all = append(all, name)
	}
}

func (b *board) work(name string, at time.Time) letters.WorkQueue {
	parts := b.partitions(name)
	w := letters.WorkQueue{Name: name, Depth: b.depth(name), Dead: b.depth(naming.DeadQueue(name)), Partitions: len(parts)}
	for _, t := range b.tiersOf(name) {
		if t.Depth = b.depth(t.Queue); t.Messages > 0 {
			t.NextDue = at.Add(t.Delay)
		}
		w.Tiers = append(w.Tiers, t)
	}
	if inbox := b.depth(b.prefix.InboxQueue(name)); !inbox.Missing {
		w.Inbox = inbox
	}
	for _, part := range parts {
		w.Messages += b.queues[part].Messages
		w.Ready += b.queues[part].Ready
		w.Unacked += b.queues[part].Unacked
	}
	return w
}

func (b *board) depth(queue string) letters.Depth {
	q, exists := b.queues[queue]
	return letters.Depth{Queue: queue, Messages: q.Messages, Ready: q.Ready, Unacked: q.Unacked, Consumers: q.Consumers,
		Missing: !exists}
}

const (
	mostFresh   = 200             // queues whose numbers Status asks for again
	freshWithin = 3 * time.Second // for all of them
)

// refresh renews the numbers of the first queues. Queues keep all numbers of the API where the broker refuses, as for
// an exclusive queue, or does not answer in time.
func (s *Store) refresh(ctx context.Context, queues map[string]management.Queue, names []string) {
	ctx, cancel := context.WithTimeout(ctx, freshWithin)
	defer cancel()
	connection, err := s.connect(ctx)
	if err != nil {
		return
	}
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { _ = connection.Socket.Close() })()
	reopening := wire.Reopening{On: connection}
	fresh := map[string]bool{} // work queues of a group have the same tiers
	for _, name := range names {
		q, exists := queues[name] // the API is not late about which queues exist
		if !exists || fresh[name] {
			continue
		}
		channel, err := reopening.Channel()
		if err != nil || len(fresh) == mostFresh {
			return
		}
		fresh[name] = true
		if now, err := channel.QueueDeclarePassive(name, true, false, false, false, nil); err == nil {
			queues[name] = renewed(q, now)
		}
	}
}

// renewed sets the numbers to those of this moment. What the API calls delivered was so some seconds ago: where the
// queue has no consumer, the reader that had it may have given it back.
func renewed(q management.Queue, now amqp091.Queue) management.Queue {
	delivered := max(q.Messages-q.Ready, 0)
	if now.Consumers == 0 {
		delivered = min(delivered, max(q.Messages-now.Messages, 0))
	}
	q.Messages, q.Ready, q.Unacked, q.Consumers = now.Messages+delivered, now.Messages, delivered, now.Consumers
	return q
}

// inOrder returns all queues of a status, the letters first and the tiers last.
func (b *board) inOrder(works, stray []string) []string {
	rest := []string{b.prefix.Orphans()}
	var own, partitions, tiers []string
	for _, work := range works {
		rest, own = append(rest, naming.DeadQueue(work)), append(own, work, b.prefix.InboxQueue(work))
		partitions = append(partitions, b.partitions(work)...)
		tiers = append(tiers, each.Of(b.tiersOf(work), func(t letters.Tier) string { return t.Queue })...)
	}
	return slices.Concat(rest, own, partitions, tiers, stray)
}
