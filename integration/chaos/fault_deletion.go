package main

import (
	"context"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

var deletions = []Fault{
	{"work-queue-deleted", needsNode, 6 * time.Second, func(ctx context.Context, l *Load) error {
		return l.delete(ctx, l.config.queue, 500*time.Millisecond, concurrency)
	}},
	{"tier-deleted", needsNode, 6 * time.Second, func(ctx context.Context, l *Load) error {
		return l.delete(ctx, func(which int) string { return l.config.tier(which, tiers.Tiers()[2]) }, 0, returnWindow)
	}},
	{"dead-letters-deleted", needsNode, 6 * time.Second, func(ctx context.Context, l *Load) error {
		return l.delete(ctx, l.config.dead, 0, 0)
	}},
}

// returnWindow is how many messages of a tier can be on their way back at once.
const returnWindow = 32

// delete deletes a queue of each work queue twice, as an operator would. That destroys the messages in it: the ready
// ones, which the broker counts, and up to unsettled others, which it does not count.
func (l *Load) delete(ctx context.Context, queue func(which int) string, slow time.Duration, unsettled int) error {
	connection, err := amqp091.Dial(l.broker.URL)
	if err != nil {
		return err
	}
	defer connection.Close()
	for range 2 {
		l.ledger.slow.Store(int64(slow)) // so that the queues contain messages
		sleep(ctx, time.Second)
		for which := range workQueues {
			channel, err := connection.Channel()
			if err != nil {
				return err
			}
			d := deletion{queue: queue(which), begin: time.Now(), unsettled: unsettled}
			d.count, err = channel.QueueDelete(d.queue, false, false, false)
			if err != nil {
				return err
			}
			l.ledger.queueDeleted(d)
		}
		l.ledger.slow.Store(0)
		l.ledger.heal()
		sleep(ctx, l.long(2*time.Second, time.Second))
	}
	return nil
}
