package middleware

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// Observers are the observers of a Connection. The zero value is ready for use. It is safe for concurrent use. A Connection has its
// own; an app that wires the parts by itself makes one, calls Attach, and sets TieredRetryConfig.Observers.
type Observers struct {
	mu  sync.Mutex
	all atomic.Pointer[observers]
}

type observers struct {
	hooks  []retry.Hooks
	logger watermill.LoggerAdapter
	failed *sync.Map // the names of hooks that have panicked
	begin  bool      // there is a hook Begin
}

// Attach attaches an observer. An error of it, or a panic, is logged, and nothing else happens.
func (o *Observers) Attach(observer retry.Observer, observed retry.Observed) {
	if observed.Logger == nil {
		observed.Logger = watermill.NopLogger{}
	}
	hooks, err := attach(observer, observed)
	if err != nil {
		observed.Logger.Error("Cannot observe the connection: it goes on without this observer", err, watermill.LogFields{"observer": fmt.Sprintf("%T", observer)})
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	next := &observers{logger: observed.Logger, failed: &sync.Map{}}
	if before := o.all.Load(); before != nil {
		next.hooks = append(next.hooks, before.hooks...)
		next.failed = before.failed
	}
	next.hooks = append(next.hooks, hooks)
	for _, h := range next.hooks {
		next.begin = next.begin || h.Begin != nil
	}
	o.all.Store(next)
}

func attach(observer retry.Observer, observed retry.Observed) (hooks retry.Hooks, err error) {
	if observer == nil {
		return retry.Hooks{}, fmt.Errorf("the observer is nil: give that of package observe")
	}
	if panicked := call(func() { hooks, err = observer.Attach(observed) }); panicked != nil {
		return retry.Hooks{}, panicked
	}
	return hooks, err
}

// Published reports the result of a publisher.
func (o *Observers) Published(p retry.Published) {
	all := o.load()
	if all == nil {
		return
	}
	for i := range all.hooks {
		if hook := all.hooks[i].Published; hook != nil {
			all.call("Published", func() { hook(p) })
		}
	}
}

// Observes reports whether an observer is attached.
func (o *Observers) Observes() bool { return o.load() != nil }

func (o *Observers) load() *observers {
	if o == nil {
		return nil
	}
	return o.all.Load()
}

// call calls a hook, and logs its panic.
func (o *observers) call(hook string, f func()) {
	panicked := call(f)
	if panicked == nil {
		return
	}
	if _, before := o.failed.LoadOrStore(hook, true); !before {
		o.logger.Error("The hook "+hook+" of an observer panicked. This is logged once", panicked, nil)
	}
}

// arrived returns the context of a message for its handler. It is nil where no hook has changed it.
func (o *observers) arrived(a retry.Arrival) (derived context.Context) {
	for i := range o.hooks {
		if hook := o.hooks[i].Begin; hook != nil {
			o.call("Begin", func() {
				if ctx := hook(a); ctx != nil {
					a.Context, derived = ctx, ctx
				}
			})
		}
	}
	return derived
}

func (o *observers) event(e *retry.Event) {
	for i := range o.hooks {
		if hook := o.hooks[i].Event; hook != nil {
			o.call("Event", func() { hook(*e) })
		}
	}
}

func (o *observers) produced(ctx context.Context, produced []*message.Message) {
	for i := range o.hooks {
		if hook := o.hooks[i].Produced; hook != nil {
			o.call("Produced", func() { hook(ctx, produced) })
		}
	}
}

// traceparent is that of the first observer that has one.
func (o *observers) traceparent(ctx context.Context) (text string) {
	for i := range o.hooks {
		if hook := o.hooks[i].Traceparent; hook != nil && text == "" {
			o.call("Traceparent", func() { text = hook(ctx) })
		}
	}
	return text
}

func (o *observers) logFields(ctx context.Context, fields watermill.LogFields) {
	for i := range o.hooks {
		if hook := o.hooks[i].LogFields; hook != nil {
			o.call("LogFields", func() { maps.Copy(fields, hook(ctx)) })
		}
	}
}
