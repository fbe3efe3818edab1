// Package tasks has goroutines that end together.
package tasks

import (
	"context"
	"sync"
)

// Tasks are the goroutines of what is closed. It is safe for concurrent use.
type Tasks struct {
	Context context.Context // ends with Close
	end     context.CancelFunc

	mu      sync.Mutex
	running sync.WaitGroup
}

// New returns tasks whose context also ends with its parent.
func New(parent context.Context) *Tasks {
	t := &Tasks{}
	t.Context, t.end = context.WithCancel(parent)
	return t
}

// Go runs a task, unless the context has ended.
func (t *Tasks) Go(run func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Context.Err() == nil {
		t.running.Go(run)
	}
}

// Close ends the context, and waits until all tasks have returned.
func (t *Tasks) Close() {
	t.mu.Lock()
	t.end()
	t.mu.Unlock()
	t.running.Wait()
}
