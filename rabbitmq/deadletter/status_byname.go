package deadletter

import (
	"context"
	"errors"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// statusByName asks for each queue by its name.
func (s *Store) statusByName(ctx context.Context, current []topology.Topology, works []string) (Status, error) {
	if len(works) == 0 && len(current) == 0 {
		return Status{}, errors.New("no work queue is named, and Config.Management is empty: name the work " +
			"queues, or set Management to find them")
	}
	connection, err := s.connect(ctx)
	if err != nil {
		return Status{}, err
	}
	defer connection.Close()
	stop := context.AfterFunc(ctx, func() { _ = connection.Socket.Close() })
	defer stop()
	look := passive{client: connection.Client, seen: map[string]Depth{}}
	defer look.close()

	status := Status{At: time.Now(), Orphans: look.depth(s.prefix.Orphans())}
	for _, t := range current {
		works = append(works, t.WorkQueue.Name)
	}
	slices.Sort(works)
	for _, name := range slices.Compact(works) {
		w := WorkQueue{Name: name, Depth: look.depth(name), Dead: look.depth(naming.DeadQueue(name))}
		for _, t := range current {
			if t.WorkQueue.Name != name {
				continue
			}
			for _, tier := range missingTiers(t, s.prefix, w.Tiers) {
				if tier.Depth = look.depth(tier.Queue); tier.Messages > 0 {
					tier.NextDue = status.At.Add(tier.Delay)
				}
				w.Tiers = append(w.Tiers, tier)
			}
			if inbox := s.prefix.InboxQueue(name); slices.ContainsFunc(t.Queues,
				func(q topology.Queue) bool { return q.Name == inbox }) {
				w.Inbox = look.depth(inbox)
			}
		}
		status.Queues = append(status.Queues, w)
	}
	if ctx.Err() != nil {
		return Status{}, context.Cause(ctx)
	}
	s.explainIdle(ctx, &status)
	return status, look.err
}

// passive asks how many messages queues have. It keeps the first error.
type passive struct {
	client  *amqp091.Connection
	channel *amqp091.Channel
	seen    map[string]Depth // work queues of a group have the same tiers
	err     error
}

func (p *passive) depth(queue string) Depth {
	depth, seen := p.seen[queue]
	if !seen {
		depth = p.look(queue)
		p.seen[queue] = depth
	}
	return depth
}

func (p *passive) look(queue string) Depth {
	if p.err != nil {
		return Depth{Queue: queue}
	}
	if p.channel == nil || p.channel.IsClosed() { // the broker closes it for a queue that does not exist
		if p.channel, p.err = p.client.Channel(); p.err != nil {
			return Depth{Queue: queue}
		}
	}
	q, err := p.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	switch {
	case err == nil:
	case refusal.IsCode(err, amqp091.NotFound):
		return Depth{Queue: queue, Missing: true}
	default:
		p.err = refusal.Explain("look at queue", queue, err)
	}
	return Depth{Queue: queue, Messages: q.Messages, Ready: q.Messages, Consumers: q.Consumers}
}

func (p *passive) close() {
	if p.channel != nil {
		_ = p.channel.Close()
	}
}
