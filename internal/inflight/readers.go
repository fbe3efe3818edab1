package inflight

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrClosed is returned by Readers.Begin after Close.
var ErrClosed = errors.New("the subscriber is closed: make a new one")

// Readers are those of one subscriber, which can have several topics. The zero value is ready for use.
type Readers struct {
	mu     sync.Mutex
	open   map[*Reader]func() error
	closed bool
}

// Begin begins a subscription. When it has ended and its messages in flight are settled, leave is called, once; a nil
// leave does nothing. Close gives back what is not settled.
func (r *Readers) Begin(ctx context.Context, c Config, leave func() error) (<-chan *message.Message, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if leave == nil {
		leave = func() error { return nil }
	}
	if r.closed {
		return nil, errors.Join(ErrClosed, leave())
	}
	reader := NewReader(c)
	end := sync.OnceValue(func() error { return errors.Join(reader.Close(), leave()) })
	if r.open == nil {
		r.open = map[*Reader]func() error{}
	}
	r.open[reader] = end
	out := reader.Subscribe(ctx)
	go func() {
		reader.ended.Wait()
		_ = end() // where Close has called it, Close returns its error
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.open, reader)
	}()
	return out, nil
}

// Close ends the subscriptions, all at the same time.
func (r *Readers) Close() error {
	r.mu.Lock()
	open := r.open
	r.open, r.closed = nil, true
	r.mu.Unlock()
	var all sync.WaitGroup
	var mu sync.Mutex
	var faults []error
	for _, end := range open {
		all.Go(func() {
			err := end()
			mu.Lock()
			defer mu.Unlock()
			faults = append(faults, err)
		})
	}
	all.Wait()
	return errors.Join(faults...)
}
