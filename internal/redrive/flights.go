package redrive

import (
	"context"
	"sync"
	"sync/atomic"
)

// placeSize is how many bytes of a body take one place of the letters in flight. 128 of them have at most 32 MiB.
const placeSize = 256 << 10

// Flights bounds the letters that are sent and not yet confirmed: in number and, by their places, in bytes.
type Flights struct {
	places chan struct{}
	flying atomic.Int64
	group  sync.WaitGroup
}

// NewFlights returns flights of at most so many letters.
func NewFlights(most int) *Flights { return &Flights{places: make(chan struct{}, most)} }

// Run calls send when there is room for a body of this size, in a goroutine where several may fly. It returns the
// error of a context that ends before.
func (f *Flights) Run(ctx context.Context, size int, send func()) error {
	if cap(f.places) == 1 {
		send()
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	places := min(1+size/placeSize, cap(f.places))
	for taken := range places {
		select {
		case f.places <- struct{}{}:
		case <-ctx.Done():
			f.leave(taken)
			return context.Cause(ctx)
		}
	}
	f.flying.Add(1)
	f.group.Go(func() {
		defer func() { f.flying.Add(-1); f.leave(places) }()
		send()
	})
	return nil
}

// Wait waits until no letter is in flight.
func (f *Flights) Wait() { f.group.Wait() }

func (f *Flights) leave(places int) {
	for range places {
		<-f.places
	}
}
