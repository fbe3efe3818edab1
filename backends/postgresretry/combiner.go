package postgresretry

import (
	"context"
	"errors"
	"strings"
	"sync"
)

// maxBytes bounds a statement for several items. Their text needs several times the memory, here and on the server.
const maxBytes = 4 << 20

// combiner does what concurrent callers ask for with few statements: while some run, those that are asked for meanwhile
// are combined. A single caller does not wait.
type combiner[T any] struct {
	run      func(context.Context, []T) error
	most     int // in one statement
	parallel int // statements at the same time

	// size returns the bytes of an item: a statement with several has at most maxBytes. Nil: they are not counted.
	size func(T) int

	mu      sync.Mutex
	queued  []*call[T]
	running int
}

type call[T any] struct {
	item      T
	done      chan error // has room for one
	withdrawn bool
}

// do waits until a statement with the item has ended, or the context. Where the context ends first, the statement may
// have been executed.
func (c *combiner[T]) do(ctx context.Context, item T) error {
	one := &call[T]{item: item, done: make(chan error, 1)}
	c.mu.Lock()
	c.queued = append(c.queued, one)
	if c.running < c.parallel {
		c.running++
		go c.work()
	}
	c.mu.Unlock()
	select {
	case err := <-one.done:
		return err
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	one.withdrawn = true
	select {
	case err := <-one.done:
		return err
	default:
		return ctx.Err()
	}
}

func (c *combiner[T]) work() {
	for {
		batch := c.next()
		if len(batch) == 0 {
			return
		}
		err := c.execute(batch)
		if len(batch) > 1 && isOfOne(err) {
			for _, one := range batch {
				one.done <- c.execute([]*call[T]{one})
			}
			continue
		}
		for _, one := range batch {
			one.done <- err
		}
	}
}

func (c *combiner[T]) next() (batch []*call[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, bytes := 0, 0
	for ; n < len(c.queued) && len(batch) < c.most; n++ {
		one := c.queued[n]
		if one.withdrawn {
			continue
		}
		if c.size != nil {
			bytes += c.size(one.item)
		}
		if len(batch) > 0 && bytes > maxBytes {
			break
		}
		batch = append(batch, one)
	}
	c.queued = append([]*call[T]{}, c.queued[n:]...)
	if len(batch) == 0 {
		c.running--
	}
	return batch
}

func (c *combiner[T]) execute(batch []*call[T]) error {
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	items := make([]T, len(batch))
	for i, one := range batch {
		items[i] = one.item
	}
	return c.run(ctx, items)
}

// isOfOne reports whether an error can be that of one row: the others must not fail with it. Its class is "data
// exception", "integrity constraint violation" or "program limit exceeded".
func isOfOne(err error) bool {
	var state interface{ SQLState() string } // the errors of pgx and lib/pq have it
	if !errors.As(err, &state) {
		return false
	}
	for _, class := range []string{"22", "23", "54"} {
		if strings.HasPrefix(state.SQLState(), class) {
			return true
		}
	}
	return false
}
