package observe

import (
	"context"
	"sync"

	"github.com/tieredretry/watermill-retry/retry"
)

// flights counts the messages that handlers have, where Health does not.
type flights struct {
	most int

	mu       sync.Mutex
	open     map[*flight]bool
	handlers map[string]bool // the handlers that have had a message
}

// A flight is a message that a handler has. It is the context of the message.
type flight struct {
	context.Context
	of      *flights
	handler string
}

// Value implements context.Context.
func (f *flight) Value(key any) any {
	if of, is := key.(*flights); is && of == f.of {
		return f
	}
	return f.Context.Value(key)
}

func newFlights(most int) *flights {
	return &flights{most: most, open: map[*flight]bool{}, handlers: map[string]bool{}}
}

// begin is the hook Begin.
func (f *flights) begin(e retry.Event) context.Context {
	one := &flight{Context: orBackground(e.Context), of: f, handler: e.Handler}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.handlers[one.handler] && len(f.handlers) >= f.most {
		one.handler = other
	}
	f.open[one], f.handlers[one.handler] = true, true
	return one
}

// event is the hook Event. An event of a message whose handler was not called has no flight.
func (f *flights) event(e retry.Event) {
	if e.Outcome == retry.Held || e.Context == nil {
		return
	}
	if one, found := e.Context.Value(f).(*flight); found {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.open, one)
	}
}

// gather counts them.
func (f *flights) gather(to figures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for handler := range f.handlers {
		to.add(inFlight, sum, 0, labels{handler})
	}
	for one := range f.open {
		to.add(inFlight, sum, 1, labels{one.handler})
	}
}
