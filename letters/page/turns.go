package page

import (
	"context"
	"sync"
)

// turns lets one call at a time look at a queue. A look holds the letters that it has taken: another one would not
// see them, and a redrive that begins meanwhile would leave them out.
type turns struct {
	lock   sync.Mutex
	queues map[string]chan struct{}
}

// take waits for the turn of a call on a queue. The call ends it with done, which may be called several times.
func (t *turns) take(ctx context.Context, queue string) (done func(), err error) {
	t.lock.Lock()
	if t.queues == nil {
		t.queues = map[string]chan struct{}{}
	}
	turn, known := t.queues[queue]
	if !known {
		turn = make(chan struct{}, 1)
		t.queues[queue] = turn
	}
	t.lock.Unlock()
	select {
	case turn <- struct{}{}:
		return sync.OnceFunc(func() { <-turn }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
