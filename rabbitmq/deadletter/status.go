package deadletter

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

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
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return letters.Status{}, err
	}
	defer end()
	b, err := s.readBoard(ctx, nil)
	if err != nil {
		return letters.Status{}, err
	}
	status := b.status(works)
	b.refresh(ctx, s, &status)
	if ctx.Err() != nil {
		return letters.Status{}, context.Cause(ctx)
	}
	return status, nil
}

// readBoard asks for the queues and the bindings at the same time: of thousands of them each takes a second.
func (s *Store) readBoard(ctx context.Context, current []topology.Topology) (*board, error) {
	client, err := s.managementClient()
	if err != nil {
		return nil, err
	}
	b := &board{prefix: s.prefix, current: current, groups: map[string]string{}, has: map[string]bool{},
		judged: map[string]bool{}, tiers: map[owner][]letters.Tier{}, parts: map[string][]letters.Depth{}}
	var bound sync.WaitGroup
	var also error
	bound.Go(func() { b.bindings, also = client.Bindings(ctx) })
	b.queues, err = client.Queues(ctx, management.Details)
	bound.Wait()
	b.readGroups()
	b.readTiers()
	return b, cmp.Or(err, also)
}

func (s *Store) managementClient() (*management.Client, error) {
	if s.config.Management == "" {
		return nil, errors.New("Config.Management is empty: AMQP does not list queues; set the address of the " +
			"management API")
	}
	broker := management.Broker{
		Vhost: s.uri.Vhost, User: s.uri.Username, Password: s.uri.Password,
		TLS: s.dial.Client(connectionName).TLSClientConfig,
	}
	if s.config.AMQP != nil && s.config.AMQP.Vhost != "" { // amqp091-go prefers it to that of the address
		broker.Vhost = s.config.AMQP.Vhost
	}
	return management.New(s.config.Management, broker)
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
	prefix   naming.Prefix
	queues   map[string]management.Queue
	bindings map[management.Binding]bool
	current  []topology.Topology // see Prune.Current

	tiers  map[owner][]letters.Tier
	groups map[string]string          // the group of each work queue
	has    map[string]bool            // tiers of current
	judged map[string]bool            // work queues and groups of current
	parts  map[string][]letters.Depth // the partitions of work queues
}

// An owner is a work queue that has tiers, or a group: another app can name its group like a work queue.
type owner struct {
	name    string
	isGroup bool
}

func (b *board) status(works []string) letters.Status {
	status := letters.Status{At: time.Now(), Orphans: b.depth(b.prefix.Orphans())}
	known, all := b.works(), len(works) == 0
	if all {
		works = slices.Collect(maps.Keys(known))
	}
	slices.Sort(works)
	for _, name := range slices.Compact(works) {
		status.Queues = append(status.Queues, b.work(name))
	}
	if !all {
		return status
	}
	for _, group := range b.groups {
		known[group] = true
	}
	for of, tiers := range b.tiers {
		for _, t := range tiers {
			if !known[of.name] {
				status.Stray = append(status.Stray, t.Depth)
			}
		}
	}
	slices.SortFunc(status.Stray, func(a, b letters.Depth) int { return strings.Compare(a.Queue, b.Queue) })
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
		tier := letters.Tier{Depth: b.depth(name), Delay: time.Duration(delay), Overdue: q.Expired}
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

func (b *board) work(name string) letters.WorkQueue {
	w := letters.WorkQueue{Name: name, Depth: b.depth(name), Dead: b.depth(naming.DeadQueue(name))}
	w.Tiers = slices.Concat(b.tiers[owner{name: name}], b.tiers[owner{b.groups[name], true}])
	if inbox := b.depth(b.prefix.InboxQueue(name)); !inbox.Missing {
		w.Inbox = inbox
	}
	for {
		part := b.depth(naming.PartitionQueue(name, w.Partitions))
		if part.Missing {
			return w
		}
		b.parts[name] = append(b.parts[name], part)
		w.Partitions++
	}
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

// refresh refreshes the queues of a status, and adds the messages of partitions to those of their work queue.
func (b *board) refresh(ctx context.Context, s *Store, status *letters.Status) {
	s.refresh(ctx, b.depthsOf(status))
	for i := range status.Queues {
		w := &status.Queues[i]
		for j := range w.Tiers {
			if tier := &w.Tiers[j]; tier.Messages > 0 {
				tier.NextDue = status.At.Add(tier.Delay)
			}
		}
		for _, part := range b.parts[w.Name] {
			w.Messages += part.Messages
			w.Ready += part.Ready
			w.Unacked += part.Unacked
		}
	}
}

// refresh renews the numbers of the first queues. Queues keep all numbers of the API where the broker refuses, as for
// an exclusive queue, or does not answer in time.
func (s *Store) refresh(ctx context.Context, depths []*letters.Depth) {
	ctx, cancel := context.WithTimeout(ctx, freshWithin)
	defer cancel()
	connection, err := s.connect(ctx)
	if err != nil {
		return
	}
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { _ = connection.Socket.Close() })()
	reopening := wire.Reopening{On: connection}
	fresh := map[string]*amqp091.Queue{} // nil: refused; work queues of a group have the same tiers
	for _, d := range depths {
		if d.Missing || d.Queue == "" { // the API is not late about which queues exist
			continue
		}
		now, asked := fresh[d.Queue]
		if !asked && len(fresh) < mostFresh {
			channel, err := reopening.Channel()
			if err != nil {
				return
			}
			if state, err := channel.QueueDeclarePassive(d.Queue, true, false, false, false, nil); err == nil {
				now = &state
			}
			fresh[d.Queue] = now
		}
		if now != nil {
			renew(d, *now)
		}
	}
}

// renew sets the numbers to those of this moment. What the API calls delivered was so some seconds ago: where the queue
// has no consumer, the reader that had it may have given it back.
func renew(d *letters.Depth, now amqp091.Queue) {
	delivered := max(d.Messages-d.Ready, 0)
	if now.Consumers == 0 {
		delivered = min(delivered, max(d.Messages-now.Messages, 0))
	}
	d.Messages, d.Ready, d.Unacked, d.Consumers = now.Messages+delivered, now.Messages, delivered, now.Consumers
}

// depthsOf returns all queues, the letters first and the tiers last.
func (b *board) depthsOf(s *letters.Status) []*letters.Depth {
	rest := []*letters.Depth{&s.Orphans}
	var works, partitions, tiers []*letters.Depth
	for i := range s.Queues {
		w := &s.Queues[i]
		rest, works = append(rest, &w.Dead), append(works, &w.Depth, &w.Inbox)
		for j := range b.parts[w.Name] {
			partitions = append(partitions, &b.parts[w.Name][j])
		}
		for j := range w.Tiers {
			tiers = append(tiers, &w.Tiers[j].Depth)
		}
	}
	for i := range s.Stray {
		tiers = append(tiers, &s.Stray[i])
	}
	return slices.Concat(rest, works, partitions, tiers)
}
