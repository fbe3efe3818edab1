package deadletter

import (
	"context"
	"errors"
	"maps"
	"slices"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
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
	look := passive{client: connection.Client}
	defer look.close()

	arguments := map[string]amqp091.Table{s.prefix.Orphans(): nil} // of the queues to ask for
	for _, t := range current {
		works = append(works, t.WorkQueue.Name)
		for _, q := range t.Queues {
			arguments[q.Name] = q.Arguments
		}
	}
	for _, name := range works {
		arguments[name], arguments[naming.DeadQueue(name)] = nil, nil
	}
	b := &board{prefix: s.prefix, current: current, queues: map[string]management.Details{}}
	for _, name := range slices.Sorted(maps.Keys(arguments)) {
		if d := look.look(name); !d.Missing {
			b.queues[name] = management.Details{Arguments: management.Arguments(arguments[name]),
				Messages: d.Messages, Ready: d.Ready, Consumers: d.Consumers}
		}
	}
	if ctx.Err() != nil {
		return Status{}, context.Cause(ctx)
	}
	status := b.status(works)
	s.explainIdle(ctx, &status)
	return status, look.err
}

// passive asks how many messages queues have. It keeps the first error.
type passive struct {
	client  *amqp091.Connection
	channel *amqp091.Channel
	err     error
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
