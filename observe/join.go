package observe

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// joined are two observers. The outer one begins first, and its Event comes last: inner sees the context that outer has
// made.
type joined struct {
	retry.NopObserver
	outer, inner retry.Observer
}

// Begin implements retry.Observer.
func (j joined) Begin(a retry.Arrival) context.Context {
	if ctx := j.outer.Begin(a); ctx != nil {
		a.Context = ctx
	}
	if ctx := j.inner.Begin(a); ctx != nil {
		return ctx
	}
	return a.Context
}

// Event implements retry.Observer.
func (j joined) Event(e retry.Event) {
	defer j.outer.Event(e) // also after a panic of the inner one: a span must end
	j.inner.Event(e)
}

// Produced implements retry.Observer.
func (j joined) Produced(ctx context.Context, produced []*message.Message) {
	j.outer.Produced(ctx, produced)
	j.inner.Produced(ctx, produced)
}

// Traceparent implements retry.Observer.
func (j joined) Traceparent(ctx context.Context) string {
	if text := j.outer.Traceparent(ctx); text != "" {
		return text
	}
	return j.inner.Traceparent(ctx)
}

// LogFields implements retry.Observer.
func (j joined) LogFields(ctx context.Context) watermill.LogFields {
	return j.outer.LogFields(ctx).Add(j.inner.LogFields(ctx))
}

// Published implements retry.Observer.
func (j joined) Published(p retry.Published) {
	defer j.outer.Published(p)
	j.inner.Published(p)
}
