package deadletter

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

const (
	// quiet is how long a quorum queue must be empty. A number of messages can be older than ten seconds: such a queue
	// reports its number every five seconds, and the management plugin collects it every five seconds.
	quiet = 15 * time.Second
	asked = 3 * time.Second // the pause between two looks at the numbers in that time
)

// Prune is the options of Store.Prune.
type Prune struct {
	// Current has the topologies that apps use now. What their work queues and groups have besides is removed: tiers,
	// the inboxes of work queues that have left their group, and the groups that no work queue belongs to any more.
	// Without topologies, only tiers are removed that no key leads to any more.
	Current []topology.Topology
	// DryRun removes nothing.
	DryRun bool
}

// Pruned is what Store.Prune has done. The lists have names of queues, sorted.
type Pruned struct {
	Removed []string `json:"removed"` // with DryRun, those that are empty
	// they have messages or consumers, or a number of messages that the broker does not state yet
	Left []string `json:"left"`
}

// Prune removes the queues of tiers that no schedule has any more, and the bindings to them, where they are empty:
// see Tier.Retired and Status.Stray. The tiers of a group without a work queue are removed together, with its
// exchanges. Call it when no app runs that has another topology than Current: a removed tier that an app still needs is
// declared again when the app publishes to it. Prune never removes a work queue, a dead-letter queue or the orphans.
//
// It needs Config.Management. The broker removes a classic queue only if it is empty and has no consumer. It refuses
// these conditions for a quorum queue, with error 540 NOT_IMPLEMENTED on RabbitMQ 3.10 to 4.3: Prune unbinds such a
// queue, and removes it when the management API has stated 0 messages for 15 seconds.
func (s *Store) Prune(ctx context.Context, options Prune) (Pruned, error) {
	for _, t := range options.Current {
		if err := t.Validate(); err != nil {
			return Pruned{}, err
		}
	}
	ctx, end, err := s.life.Begin(ctx)
	if err != nil {
		return Pruned{}, err
	}
	defer end()
	b, err := s.readBoard(ctx, options.Current)
	if err != nil {
		return Pruned{}, err
	}
	p := pruning{board: b, store: s, all: map[string]*retired{}, whole: map[string][]*retired{}}
	p.find()
	s.refresh(ctx, b.queues, slices.Collect(maps.Keys(p.all)))
	for name, q := range p.all {
		q.left = q.left || b.queues[name].Messages > 0 || b.queues[name].Consumers > 0
	}
	all := slices.Collect(maps.Values(p.all))
	if !options.DryRun && slices.ContainsFunc(all, func(q *retired) bool { return !q.left }) {
		err = p.run(ctx)
	}
	var pruned Pruned
	for _, name := range slices.Sorted(maps.Keys(p.all)) {
		if p.all[name].left {
			pruned.Left = append(pruned.Left, name)
		} else if err == nil {
			pruned.Removed = append(pruned.Removed, name)
		}
	}
	return pruned, err
}

// A fate is shared by the tiers of a group that are removed together.
type fate struct{ left bool }

// A retired queue may be removed.
type retired struct {
	name string
	*fate
	quorum bool
	alone  bool               // it is removed by itself, not with the tiers of its group
	empty  time.Time          // since when a quorum queue was seen without messages
	back   management.Binding // brings its messages to the work queue; zero: none
}

// A pruning is one call of Prune.
type pruning struct {
	*board
	store   *Store
	all     map[string]*retired   // queues that may be removed, by their names
	whole   map[string][]*retired // tiers of groups without a work queue
	channel wire.Reopening
}

// find finds the queues that may be removed.
func (p *pruning) find() {
	add := func(name string, together *fate) *retired {
		q := &retired{name: name, fate: cmp.Or(together, &fate{}), alone: together == nil}
		q.quorum = p.queues[name].Arguments[queuearg.QueueType] == string(topology.Quorum)
		p.all[name] = q
		return q
	}
	back := func(work, key string) management.Binding {
		return management.Binding{Exchange: p.prefix.ReturnExchange(), Queue: work, Key: key}
	}
	members := slices.Collect(maps.Values(p.groups))
	for of, tiers := range p.tiers {
		together := &fate{}
		for _, t := range tiers {
			switch {
			case of.isGroup && !p.judged[of.name] && !slices.Contains(members, of.name):
				p.whole[of.name] = append(p.whole[of.name], add(t.Queue, together))
			case t.Retired && of.isGroup:
				add(t.Queue, nil)
			case t.Retired:
				add(t.Queue, nil).back = back(of.name, naming.RetryKey(of.name, backoff.Tier(t.Delay)))
			}
		}
	}
	for _, t := range p.current {
		work := t.WorkQueue.Name
		// a work queue that exists with other arguments than its topology can have an inbox
		inbox := p.prefix.InboxQueue(work)
		if _, exists := p.queues[inbox]; exists && p.groups[work] == "" {
			add(inbox, nil).back = back(work, naming.InboxKey(work))
		}
	}
}

func (p *pruning) run(ctx context.Context) error {
	connection, err := p.store.connect(ctx)
	if err != nil {
		return err
	}
	defer connection.Close()
	p.channel = wire.Reopening{On: connection}
	if err := p.unbind(); err != nil {
		return err
	}
	if err := p.wait(ctx); err != nil {
		return err
	}
	for _, q := range p.all {
		if q.alone && !q.left {
			if err := p.remove(q); err != nil {
				return err
			}
		}
	}
	for group, tiers := range p.whole {
		if err := p.removeGroup(group, tiers); err != nil {
			return err
		}
	}
	return nil
}

// unbind removes the bindings through which messages come to the queues, except those of groups: other work queues may
// use these. It removes the work queues that have left a group from its return exchange: what waits comes back through
// the alternate exchange.
func (p *pruning) unbind() error {
	for at := range p.bindings {
		work, _ := naming.QueueOfKey(at.Key)
		group, isGroup := p.prefix.GroupOfReturn(at.Exchange)
		left := isGroup && p.judged[work] && p.groups[work] != group
		isMember := at.Queue == work && at.Key == naming.MemberKey(work)
		isInbox := at.Queue == p.prefix.InboxQueue(work) && at.Key == naming.AnyReturnKey(work)
		q := p.all[at.Queue]
		if q != nil && q.alone && !q.left || left && (isMember || isInbox) {
			if err := p.unbindOne(at); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pruning) unbindOne(at management.Binding) error {
	what := fmt.Sprintf("unbind from exchange %q with key %q the queue", at.Exchange, at.Key)
	return p.over(what, at.Queue, func(channel *amqp091.Channel) error {
		return channel.QueueUnbind(at.Queue, at.Key, at.Exchange, nil)
	})
}

// wait leaves the quorum queues that are not empty for a while.
func (p *pruning) wait(ctx context.Context) error {
	for begin := time.Now(); ; {
		now, err := p.client.Queues(ctx, management.Depths)
		if err != nil {
			return err
		}
		waits := false
		for _, q := range p.all {
			if !q.quorum || q.left {
				continue
			}
			if n := now[q.name]; !n.Stated || n.Messages > 0 { // or it was so up to ten seconds ago
				q.empty = time.Time{}
				q.left = time.Since(begin) > quiet
			} else if q.empty.IsZero() {
				q.empty = time.Now()
			}
			waits = waits || !q.left && (q.empty.IsZero() || time.Since(q.empty) <= quiet)
		}
		if !waits {
			return nil
		}
		if err := pauses.Sleep(ctx, asked); err != nil {
			return err
		}
	}
}

// removeGroup removes the tiers and the exchanges of a group that has no work queue. The broker removes the return
// exchange only if no work queue is bound to it.
func (p *pruning) removeGroup(group string, tiers []*retired) error {
	for _, q := range tiers {
		used, err := p.used(q)
		if q.left = q.left || used; q.left || err != nil {
			return err
		}
	}
	out := p.prefix.GroupReturnExchange(group)
	for _, exchange := range []string{out, p.prefix.GroupExchange(group)} {
		err := p.over("delete exchange", exchange, func(channel *amqp091.Channel) error {
			return channel.ExchangeDelete(exchange, exchange == out, false)
		})
		if tiers[0].left = refusal.IsCode(err, amqp091.PreconditionFailed); tiers[0].left {
			return nil
		}
		if err != nil {
			return err
		}
	}
	for _, q := range tiers {
		if err := p.remove(q); err != nil {
			return err
		}
		if q.left { // a message has come meanwhile, and needs the return exchange
			if err := p.over("declare exchange", out, func(channel *amqp091.Channel) error {
				return channel.ExchangeDeclare(out, amqp091.ExchangeTopic, true, false, false, false,
					amqp091.Table{queuearg.AlternateExchange: p.prefix.AnyReturnExchange()})
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes a queue if it is empty and has no consumer, and then its binding back, or leaves it.
func (p *pruning) remove(q *retired) error {
	if q.quorum {
		if used, err := p.used(q); err != nil || used {
			q.fate = &fate{left: true} // of this queue alone
			return err
		}
	}
	err := p.over("delete queue", q.name, func(channel *amqp091.Channel) error {
		_, err := channel.QueueDelete(q.name, !q.quorum, !q.quorum, false)
		return err
	})
	switch {
	case refusal.IsCode(err, amqp091.PreconditionFailed):
		q.fate = &fate{left: true}
		return nil
	case err == nil && p.bindings[q.back]:
		return p.unbindOne(q.back)
	}
	return err
}

// used reports whether a queue has consumers, or messages whose delay is not over.
func (p *pruning) used(q *retired) (used bool, err error) {
	err = p.over("look at queue", q.name, func(channel *amqp091.Channel) error {
		now, err := channel.QueueDeclarePassive(q.name, true, false, false, false, nil)
		used = now.Messages+now.Consumers > 0
		return err
	})
	if refusal.IsCode(err, amqp091.NotFound) {
		return false, nil
	}
	return used, err
}

// over calls use with a channel. The broker closes it with each refusal.
func (p *pruning) over(what, name string, use func(*amqp091.Channel) error) error {
	channel, err := p.channel.Channel()
	if err == nil {
		err = use(channel)
	}
	if err != nil {
		return refusal.Explain(what, name, err)
	}
	return nil
}
