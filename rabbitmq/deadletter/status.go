package deadletter

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Status is the work queues of a virtual host, with their tiers and dead letters. Ready and Consumers of up to 200
// queues are those of this moment: of orphans and dead letters first, then of work queues, then of partitions, then of
// tiers. All other figures are those of the management API, which are up to ten seconds old. For three seconds at most
// Status waits for the newer ones.
type Status struct {
	At      time.Time   `json:"at"`
	Queues  []WorkQueue `json:"queues"`
	Orphans Depth       `json:"orphans"`
	// Stray are tiers of work queues that do not exist and have no dead-letter queue, and of groups without a work
	// queue. What waits on them becomes an orphan.
	Stray []Depth `json:"stray,omitempty"`
}

// WorkQueue is a work queue with everything that belongs to it.
type WorkQueue struct {
	Name string `json:"name"`
	// Depth has the messages of the partitions too, where a handler has Order.Partitions. Its Consumers are those of the
	// work queue alone.
	Depth
	// Tiers are sorted by their delay. Work queues of a group all have the tiers of the group.
	Tiers []Tier `json:"tiers,omitempty"`
	// Inbox is between the tiers of a group and the work queue. Its Queue is empty where the work queue needs none.
	Inbox Depth `json:"inbox,omitzero"`
	Dead  Depth `json:"dead"`
	partitions
	parts []Depth // those of the partitions, until they are added
}

// Depth is how many messages a queue has.
type Depth struct {
	Queue     string `json:"queue"`
	Messages  int    `json:"messages"` // all of them
	Ready     int    `json:"ready"`    // those that no consumer has
	Unacked   int    `json:"unacked"`  // those that a consumer has
	Consumers int    `json:"consumers"`
	Missing   bool   `json:"missing,omitzero"` // the queue does not exist
}

// Tier is the queue of a tier.
type Tier struct {
	Depth
	Delay time.Duration `json:"delay"` // in nanoseconds
	// Group is the group of work queues that share the tier. Empty: it belongs to the work queue alone.
	Group string `json:"group,omitzero"`
	// Retired is true where no new message gets to the tier, or comes back from it by a key of its own.
	Retired bool `json:"retired,omitzero"`
	// NextDue is when the first of its messages is due at the latest. It is zero where the tier is empty. The broker
	// does not show how long a message has waited, so this is a full delay after Status.At.
	NextDue time.Time `json:"next_due,omitzero"`
	// Overdue is how many of its messages have waited for their delay and are not yet in their work queue. A tier
	// that forwards without a fault can have up to 32, which are on their way.
	Overdue int `json:"overdue,omitzero"`
}

// IsOverdue reports whether more messages are overdue than a tier without a fault can have.
func (t Tier) IsOverdue() bool { return t.Overdue > management.ForwardedAtOnce }

// Status returns the state of work queues, without names that of all. It needs Config.Management.
func (s *Store) Status(ctx context.Context, works ...string) (Status, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return Status{}, err
	}
	defer end()
	b, err := s.readBoard(ctx, nil)
	if err != nil {
		return Status{}, err
	}
	status := b.status(works)
	s.refreshStatus(ctx, &status)
	if ctx.Err() != nil {
		return Status{}, context.Cause(ctx)
	}
	return status, nil
}

// readBoard asks for the queues and the bindings at the same time: of thousands of them each takes a second.
func (s *Store) readBoard(ctx context.Context, current []topology.Topology) (*board, error) {
	client, err := s.managementClient()
	if err != nil {
		return nil, err
	}
	b := &board{prefix: s.prefix, current: current}
	bound := make(chan error, 1)
	go func() {
		var err error
		b.bindings, err = client.Bindings(ctx)
		bound <- err
	}()
	b.queues, err = client.Queues(ctx, management.Details)
	if also := <-bound; err == nil {
		err = also
	}
	return b, err
}

func (s *Store) managementClient() (*management.Client, error) {
	if s.config.Management == "" {
		return nil, errors.New("Config.Management is empty: AMQP does not list queues; set the address of the " +
			"management API")
	}
	uri, _ := amqp091.ParseURI(s.config.URI)
	broker := management.Broker{
		Vhost: uri.Vhost, User: uri.Username, Password: uri.Password,
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

	own    map[string][]Tier // of work queues
	shared map[string][]Tier // of groups
	groups map[string]string // of work queues
	has    map[string]bool   // tiers of current
	judged map[string]bool   // work queues and groups of current
}

func (b *board) status(works []string) Status {
	status := Status{At: time.Now(), Orphans: b.depth(b.prefix.Orphans())}
	b.readGroups()
	b.readTiers(status.At)
	all := len(works) == 0
	known := map[string]bool{}
	for _, name := range b.works() {
		known[name] = true
		if all {
			works = append(works, name)
		}
	}
	slices.Sort(works)
	for _, name := range slices.Compact(works) {
		status.Queues = append(status.Queues, b.work(name))
	}
	if !all {
		return status
	}
	for name, tiers := range b.own {
		if !known[name] {
			status.stray(tiers)
		}
	}
	members := map[string]bool{}
	for _, group := range b.groups {
		members[group] = true
	}
	for group, tiers := range b.shared {
		if !members[group] {
			status.stray(tiers)
		}
	}
	slices.SortFunc(status.Stray, func(a, b Depth) int { return strings.Compare(a.Queue, b.Queue) })
	return status
}

func (s *Status) stray(tiers []Tier) {
	for _, t := range tiers {
		s.Stray = append(s.Stray, t.Depth)
	}
}

// readGroups finds the group of each work queue, and what current has.
func (b *board) readGroups() {
	b.groups, b.has, b.judged = map[string]string{}, map[string]bool{}, map[string]bool{}
	for at := range b.bindings {
		if group, isGroup := b.prefix.GroupOfReturn(at.Exchange); isGroup && at.Key == naming.MemberKey(at.Queue) {
			b.groups[at.Queue] = group
		}
	}
	for _, t := range b.current {
		if group := t.Group(); group != t.WorkQueue.Name {
			b.groups[t.WorkQueue.Name] = group
		}
		b.judged[t.Group()] = true
		for _, q := range t.Queues {
			b.has[q.Name] = true
		}
	}
}

// readTiers finds the tiers. A queue with the name of a tier is one if its messages go to a return exchange.
func (b *board) readTiers(at time.Time) {
	b.own, b.shared = map[string][]Tier{}, map[string][]Tier{}
	for name, q := range b.queues {
		group, delay, isTier := b.prefix.TierOf(name)
		if !isTier {
			continue
		}
		tier := Tier{Depth: b.depth(name), Delay: time.Duration(delay), Overdue: q.Expired}
		if tier.Messages > 0 {
			tier.NextDue = at.Add(tier.Delay)
		}
		switch q.Arguments[queuearg.DeadLetterExchange] {
		case b.prefix.ReturnExchange():
			key := naming.RetryKey(group, delay)
			tier.Retired = !b.bindings[management.Binding{Exchange: b.prefix.RetryExchange(), Queue: name,
				Key: key}] ||
				!b.bindings[management.Binding{Exchange: b.prefix.ReturnExchange(), Queue: group, Key: key}]
			b.own[group] = append(b.own[group], b.judge(group, tier))
		case b.prefix.GroupReturnExchange(group):
			tier.Group = group
			tier.Retired = !b.bindings[management.Binding{Exchange: b.prefix.GroupExchange(group), Queue: name,
				Key: naming.TierKeys(delay)}]
			b.shared[group] = append(b.shared[group], b.judge(group, tier))
		}
	}
	for _, tiers := range []map[string][]Tier{b.own, b.shared} {
		for _, of := range tiers {
			slices.SortFunc(of, func(x, y Tier) int { return int(min(max(x.Delay-y.Delay, -1), 1)) })
		}
	}
}

// judge sets Retired as current has it.
func (b *board) judge(group string, tier Tier) Tier {
	if b.judged[group] {
		tier.Retired = !b.has[tier.Queue]
	}
	return tier
}

// works returns the names of the work queues: those with a dead-letter queue, those that are bound, and those that
// exist and have tiers.
func (b *board) works() []string {
	var works []string
	add := func(name string, is bool) {
		if is && name != "" {
			works = append(works, name)
		}
	}
	exists := func(name string) bool { _, exists := b.queues[name]; return exists }
	for name := range b.queues {
		add(naming.WorkQueueOf(name), naming.WorkQueueOf(name) != name)
	}
	for name := range b.own {
		add(name, exists(name))
	}
	for name := range b.groups {
		add(name, true)
	}
	for at := range b.bindings {
		add(at.Queue, at.Exchange == b.prefix.AnyReturnExchange() && at.Key == naming.AnyReturnKey(at.Queue))
	}
	slices.Sort(works)
	return slices.Compact(works)
}

func (b *board) work(name string) WorkQueue {
	w := WorkQueue{Name: name, Depth: b.depth(name), Dead: b.depth(naming.DeadQueue(name))}
	w.Tiers = append(slices.Clone(b.own[name]), b.shared[b.groups[name]]...)
	if inbox := b.depth(b.prefix.InboxQueue(name)); !inbox.Missing {
		w.Inbox = inbox
	}
	for {
		part := b.depth(naming.PartitionQueue(name, int(w.partitions)))
		if part.Missing {
			return w
		}
		w.parts = append(w.parts, part)
		w.partitions++
	}
}

func (b *board) depth(queue string) Depth {
	q, exists := b.queues[queue]
	return Depth{Queue: queue, Messages: q.Messages, Ready: q.Ready, Unacked: q.Unacked, Consumers: q.Consumers,
		Missing: !exists}
}
