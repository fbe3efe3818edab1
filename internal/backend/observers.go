package backend

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/retry"
)

// Observers are the observers of a Connection. The zero value is ready for use. It is safe for concurrent use. A
// Connection and a builder have their own.
type Observers struct {
	mu  sync.Mutex
	all atomic.Pointer[Attached]
}

// Attached are the observers that were attached when a delivery began.
type Attached struct {
	all    []Observer
	logger watermill.LoggerAdapter
	failed *sync.Map // the names of methods that have panicked
}

// Attach attaches an observer. An error of it, or a panic, is logged, and nothing else happens.
func (o *Observers) Attach(observer retry.Observer, observed Observed) {
	if observed.Logger == nil {
		observed.Logger = watermill.NopLogger{}
	}
	own, err := attach(observer, observed)
	if err != nil {
		observed.Logger.Error("Cannot observe the connection: it goes on without this observer", err,
			watermill.LogFields{"observer": fmt.Sprintf("%T", observer)})
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	next := &Attached{logger: observed.Logger, failed: &sync.Map{}}
	if before := o.all.Load(); before != nil {
		next.all = append(next.all, before.all...)
		next.failed = before.failed
	}
	next.all = append(next.all, own)
	o.all.Store(next)
}

func attach(observer retry.Observer, observed Observed) (own Observer, err error) {
	if observer == nil {
		return nil, fmt.Errorf("the observer is nil: give that of package observe")
	}
	full, ok := observer.(Observer)
	if !ok {
		return outcomes{own: observer}, nil
	}
	if panicked := panics.Call(func() { own, err = full.Attach(observed) }); panicked != nil {
		return nil, panicked
	}
	if own == nil {
		own = full
	}
	return own, err
}

// Published reports the result of a publisher.
func (o *Observers) Published(p Published) {
	all := o.Load()
	if all == nil {
		return
	}
	for _, one := range all.all {
		all.call("Published", func() { one.Published(p) })
	}
}

// Observes reports whether an observer is attached.
func (o *Observers) Observes() bool { return o.Load() != nil }

// Load returns the observers that are attached now. Nil: there are none.
func (o *Observers) Load() *Attached {
	if o == nil {
		return nil
	}
	return o.all.Load()
}

// call calls a method, and logs its panic.
func (o *Attached) call(method string, f func()) {
	panicked := panics.Call(f)
	if panicked == nil {
		return
	}
	if _, before := o.failed.LoadOrStore(method, true); !before {
		o.logger.Error("The method "+method+" of an observer panicked. This is logged once", panicked, nil)
	}
}

// Begin returns the context of a message for its handler. It is nil where no observer has changed it.
func (o *Attached) Begin(e *retry.Event) (derived context.Context) {
	for _, one := range o.all {
		o.call("Begin", func() {
			if ctx := one.Begin(*e); ctx != nil {
				e.Context, derived = ctx, ctx
			}
		})
	}
	return derived
}

// Event reports an outcome.
func (o *Attached) Event(e *retry.Event) {
	for _, one := range o.all {
		o.call("Event", func() { one.Event(*e) })
	}
}

// Produced reports what a handler has produced.
func (o *Attached) Produced(ctx context.Context, produced []*message.Message) {
	for _, one := range o.all {
		o.call("Produced", func() { one.Produced(ctx, produced) })
	}
}

// Traceparent is that of the first observer that has one.
func (o *Attached) Traceparent(ctx context.Context) (text string) {
	for _, one := range o.all {
		if text == "" {
			o.call("Traceparent", func() { text = one.Traceparent(ctx) })
		}
	}
	return text
}

// LogFields adds the fields of the observers.
func (o *Attached) LogFields(ctx context.Context, fields watermill.LogFields) {
	for _, one := range o.all {
		o.call("LogFields", func() { maps.Copy(fields, one.LogFields(ctx)) })
	}
}
