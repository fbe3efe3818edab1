package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Drain sends the messages that wait on the queue of a tier back to their work queues at once, in place of at the end
// of their delay. They keep their failure record, so their retries go on. It looks only at the messages that are
// there when it begins; those that are due meanwhile come back by themselves, and are Unseen in the Summary. A
// message whose work queue does not exist stays. It uses the Filter, Limit, Rate, DryRun and Progress of the options,
// and refuses the others. See also Prune.
func (s *Store) Drain(ctx context.Context, tier string, options letters.Redrive) (letters.Summary, error) {
	group, _, isTier := s.prefix.TierOf(tier)
	if !isTier {
		return letters.Summary{}, fmt.Errorf("%q is not the queue of a tier: it must be <work queue or "+
			"group>.%s.<delay>, such as orders.%[2]s.10s", tier, string(s.prefix))
	}
	if err := options.Validate(); err != nil {
		return letters.Summary{}, err
	}
	if options.Canary != 0 || options.MaxRedead != 0 || options.To != "" || options.Note != "" ||
		options.Again {
		return letters.Summary{}, errors.New("Redrive.Canary, MaxRedead, To, Note and Again are for letters, and " +
			"messages on a tier are none: leave them out")
	}
	through, err := s.returnOf(ctx, group)
	if err != nil {
		return letters.Summary{}, err
	}
	return s.redrive(ctx, tier, through, options)
}

// returnOf returns the exchange through which messages come back from the tiers of a group, or of a work queue. No
// group has the name of a work queue.
func (s *Store) returnOf(ctx context.Context, group string) (string, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return "", err
	}
	defer end()
	connection, err := s.connect(ctx)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	for _, exchange := range []string{s.prefix.GroupReturnExchange(group), s.prefix.ReturnExchange()} {
		_, err = connection.Channel(func(channel *amqp091.Channel) error {
			return channel.ExchangeDeclarePassive(exchange, amqp091.ExchangeDirect, true, false, false, false, nil)
		})
		if !refusal.IsCode(err, amqp091.NotFound) {
			return exchange, err
		}
	}
	return "", fmt.Errorf("the exchange %q does not exist: nothing leads from a tier to its work queue; start the "+
		"app, which declares it: %w", s.prefix.ReturnExchange(), err)
}

// Prune is the options of Store.Prune.
type Prune struct {
	// Current has the topologies that apps use now. A tier of their work queues and groups that none of them has is
	// removed. Without them, only tiers are removed that no key leads to any more.
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
// see Tier.Retired and Status.Stray. It needs Config.Management, and waits at least 15 seconds for the broker's
// numbers of messages, as topology.Retire does. A removed tier that an app still needs is declared again when the app
// publishes to it.
func (s *Store) Prune(ctx context.Context, options Prune) (Pruned, error) {
	for _, t := range options.Current {
		if err := t.Validate(); err != nil {
			return Pruned{}, err
		}
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return Pruned{}, err
	}
	defer end()
	b, err := s.readBoard(ctx, options.Current)
	if err != nil {
		return Pruned{}, err
	}
	b.status(nil)
	var pruned Pruned
	retired := b.retired()
	var depths []*letters.Depth
	for i := range retired {
		depths = append(depths, &retired[i].Depth)
	}
	s.refresh(ctx, depths)
	for _, t := range retired {
		if t.Messages > 0 {
			pruned.Left = append(pruned.Left, t.Queue)
		} else {
			pruned.Removed = append(pruned.Removed, t.Queue)
		}
	}
	slices.Sort(pruned.Removed)
	slices.Sort(pruned.Left)
	if len(pruned.Removed) == 0 || options.DryRun {
		return pruned, nil
	}
	retired = slices.DeleteFunc(retired, func(t letters.Tier) bool { return slices.Contains(pruned.Left, t.Queue) })
	left, err := s.retire(ctx, b, retired)
	if err != nil {
		return Pruned{Left: pruned.Left}, err
	}
	pruned.Removed = slices.DeleteFunc(pruned.Removed, func(name string) bool { return slices.Contains(left, name) })
	pruned.Left = append(pruned.Left, left...)
	slices.Sort(pruned.Left)
	pruned.Left = slices.Compact(pruned.Left)
	return pruned, nil
}

// retired returns the tiers that may be removed.
func (b *board) retired() (retired []letters.Tier) {
	members := slices.Collect(maps.Values(b.groups))
	for _, tiers := range []map[string][]letters.Tier{b.own, b.shared} {
		for _, of := range tiers {
			for _, t := range of {
				stray := t.Group != "" && !b.judged[t.Group] && !slices.Contains(members, t.Group)
				if t.Retired || stray {
					retired = append(retired, t)
				}
			}
		}
	}
	return retired
}

// retire removes tiers by topology.Retire. Its topologies have the tiers of one type of queue of one work queue or
// group each.
func (s *Store) retire(ctx context.Context, b *board, tiers []letters.Tier) (left []string, err error) {
	type of struct{ group, kind string }
	delays := map[of][]backoff.Tier{}
	shared := map[string]bool{}
	for _, t := range tiers {
		group, _, _ := s.prefix.TierOf(t.Queue)
		kind, _ := b.queues[t.Queue].Arguments[queuearg.QueueType].(string)
		delays[of{group, kind}] = append(delays[of{group, kind}], backoff.Tier(t.Delay))
		shared[group] = t.Group != ""
	}
	config := topology.RetireConfig{WholeGroups: true, Messages: func(ctx context.Context) (map[string]int, error) {
		client, err := s.managementClient()
		if err != nil {
			return nil, err
		}
		queues, err := client.Queues(ctx, management.Depths)
		messages := map[string]int{}
		for name, q := range queues {
			if q.Stated {
				messages[name] = q.Messages
			}
		}
		return messages, err
	}}
	for of, tiers := range delays {
		retired := topology.Config{
			Prefix: string(s.prefix), Tiers: tiers, QueueType: topology.QueueType(of.kind),
			WorkQueueMode: topology.Leave,
		}
		work := of.group
		if shared[of.group] {
			retired.TierGroup = of.group
			if work = b.memberOf(of.group); work != "" {
				// Retire needs to know that the group has a work queue. It does not delete what is not in Old, so any
				// tier will do.
				current := retired
				current.Tiers = []backoff.Tier{unused(tiers)}
				config.Current = append(config.Current,
					topology.New(current, topology.Queue{Name: work, Durable: true}))
			} else {
				work = "no work queue of " + of.group
			}
		}
		config.Old = append(config.Old, topology.New(retired, topology.Queue{Name: work, Durable: true}))
	}
	connection, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	return topology.Retire(ctx, connection.Client, config)
}

// memberOf returns one work queue of a group.
func (b *board) memberOf(group string) string {
	for _, work := range slices.Sorted(maps.Keys(b.groups)) {
		if b.groups[work] == group {
			return work
		}
	}
	return ""
}

// unused returns a tier that is not among others.
func unused(others []backoff.Tier) backoff.Tier {
	for tier := backoff.Tier(time.Second); ; tier += backoff.Tier(time.Second) {
		if !slices.Contains(others, tier) {
			return tier
		}
	}
}
