package chaos

import (
	"context"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

var deletions = []Fault{
	{"work-queue-deleted", 0, 6 * time.Second, separately(func(ctx context.Context, l *Load) error {
		return l.delete(ctx, l.config.Queue, concurrency)
	})},
	{"tier-deleted", 0, 6 * time.Second, separately(func(ctx context.Context, l *Load) error {
		return l.delete(ctx, l.config.tierQueues()[2], returnWindow)
	})},
	{"dead-letters-deleted", 0, 6 * time.Second, separately(func(ctx context.Context, l *Load) error {
		return l.delete(ctx, l.config.Queue+".dead", 0)
	})},
}

// returnWindow is how many messages of a tier can be on their way back at once.
const returnWindow = 32

// delete deletes a queue twice, as an operator would. That destroys the messages in it: the ready ones, which the broker counts,
// and up to unsettled others, which it does not count.
func (l *Load) delete(ctx context.Context, queue string, unsettled int) error {
	connection, err := amqp091.Dial(l.broker.URL)
	if err != nil {
		return err
	}
	defer connection.Close()
	for range 2 {
		if queue == l.config.Queue {
			l.ledger.slow.Store(int64(500 * time.Millisecond)) // so that the queue contains messages
		}
		sleep(ctx, time.Second)
		channel, err := connection.Channel()
		if err != nil {
			return err
		}
		d := deletion{queue: queue, begin: time.Now(), unsettled: unsettled}
		d.count, err = channel.QueueDelete(queue, false, false, false)
		if err != nil {
			return err
		}
		l.ledger.slow.Store(0)
		l.ledger.queueDeleted(d)
		l.ledger.heal()
		sleep(ctx, l.long(2*time.Second, time.Second))
	}
	return nil
}
