package deadletter

import (
	"context"
	"time"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/letters"
)

const (
	mostFresh   = 200             // queues whose numbers Status asks for again
	freshWithin = 3 * time.Second // for all of them
)

// refreshStatus refreshes the queues of a status, and adds the messages of partitions to those of their work queue.
func (s *Store) refreshStatus(ctx context.Context, status *letters.Status, parts map[string][]letters.Depth) {
	s.refresh(ctx, depthsOf(status, parts))
	for i := range status.Queues {
		for j := range status.Queues[i].Tiers {
			tier := &status.Queues[i].Tiers[j]
			if tier.NextDue = (time.Time{}); tier.Messages > 0 {
				tier.NextDue = status.At.Add(tier.Delay)
			}
		}
		w := &status.Queues[i]
		for _, part := range parts[w.Name] {
			w.Messages += part.Messages
			w.Ready += part.Ready
			w.Unacked += part.Unacked
		}
	}
}

// refresh sets the numbers of ready messages and of consumers of the first queues to those of this moment. Messages
// that are not ready are those of the management API. Queues keep all numbers of the API where the broker refuses, as
// for an exclusive queue, or does not answer in time.
func (s *Store) refresh(ctx context.Context, depths []*letters.Depth) {
	ctx, cancel := context.WithTimeout(ctx, freshWithin)
	defer cancel()
	connection, err := s.connect(ctx)
	if err != nil {
		return
	}
	defer connection.Close()
	stop := context.AfterFunc(ctx, func() { _ = connection.Socket.Close() })
	defer stop()
	reopening := wire.Reopening{On: connection}
	fresh, asked := map[string]letters.Depth{}, map[string]bool{} // work queues of a group have the same tiers
	for _, d := range depths {
		if d.Missing || d.Queue == "" { // the API is not late about which queues exist
			continue
		}
		if !asked[d.Queue] && len(asked) < mostFresh {
			asked[d.Queue] = true
			channel, err := reopening.Channel()
			if err != nil {
				return
			}
			if now, err := channel.QueueDeclarePassive(d.Queue, true, false, false, false, nil); err == nil {
				fresh[d.Queue] = letters.Depth{Ready: now.Messages, Consumers: now.Consumers}
			}
		}
		if now, is := fresh[d.Queue]; is {
			d.Messages = now.Ready + max(d.Messages-d.Ready, 0)
			d.Ready, d.Consumers = now.Ready, now.Consumers
		}
	}
}

// depthsOf returns all queues, the letters first and the tiers last.
func depthsOf(s *letters.Status, parts map[string][]letters.Depth) []*letters.Depth {
	all := []*letters.Depth{&s.Orphans}
	for i := range s.Queues {
		all = append(all, &s.Queues[i].Dead)
	}
	for i := range s.Queues {
		all = append(all, &s.Queues[i].Depth, &s.Queues[i].Inbox)
	}
	for i := range s.Queues {
		of := parts[s.Queues[i].Name]
		for j := range of {
			all = append(all, &of[j])
		}
	}
	for i := range s.Queues {
		for j := range s.Queues[i].Tiers {
			all = append(all, &s.Queues[i].Tiers[j].Depth)
		}
	}
	for i := range s.Stray {
		all = append(all, &s.Stray[i])
	}
	return all
}
