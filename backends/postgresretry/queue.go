package postgresretry

import (
	"context"
	"time"

	"github.com/tieredretry/watermill-retry/internal/inflight"
)

// queue is a return topic as an inflight.Queue, or the app's topic of that return topic: its messages are taken from
// there, and settled here.
type queue struct {
	*source
	returnTopic string
	app         *appTopic // nil: a return topic
	alarm       *inflight.Alarm
}

var _ inflight.Queue = queue{}

// Take implements inflight.Queue. It does not end with the context while a statement runs: what it takes must be known.
func (q queue) Take(ctx context.Context, n int) ([]*inflight.Taken, error) {
	return q.alarm.Take(ctx, n, func(looked bool) ([]*inflight.Taken, time.Duration, error) {
		if q.app != nil {
			return q.read(ctx, q.app, n, looked)
		}
		return q.waiting.take(q.returnTopic, n)
	})
}

// Ack implements inflight.Queue. It deletes messages whose leases have ended, too: they have been handled.
func (q queue) Ack(ctx context.Context, taken []*inflight.Taken) error {
	return q.waiting.ack(ctx, taken)
}

// Renew implements inflight.Queue.
func (q queue) Renew(ctx context.Context, taken []*inflight.Taken) ([]*inflight.Taken, error) {
	return q.waiting.renew(ctx, taken)
}

// GiveBack implements inflight.Queue. A message that another reader has taken meanwhile stays with that reader.
func (q queue) GiveBack(ctx context.Context, taken []*inflight.Taken) error {
	err := q.waiting.giveBack(ctx, taken)
	q.watch.Expect(q.returnTopic, 0)
	return err
}
