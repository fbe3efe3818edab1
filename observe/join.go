package observe

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// join returns hooks that call those of both. Where both have a hook, that of outer begins first, and its Event comes
// last: inner sees the context that outer has made.
func join(outer, inner retry.Hooks) retry.Hooks {
	return retry.Hooks{
		Begin:       joinBegin(outer.Begin, inner.Begin),
		Event:       both(inner.Event, outer.Event),
		Produced:    joinProduced(outer.Produced, inner.Produced),
		Traceparent: joinTraceparent(outer.Traceparent, inner.Traceparent),
		LogFields:   joinLogFields(outer.LogFields, inner.LogFields),
		Published:   both(inner.Published, outer.Published),
	}
}

func both[T any](first, second func(T)) func(T) {
	if first == nil || second == nil {
		return either(first == nil, second, first)
	}
	return func(value T) {
		defer second(value) // also after a panic of the first: a span must end
		first(value)
	}
}

func either[T any](condition bool, yes, no T) T {
	if condition {
		return yes
	}
	return no
}

func joinBegin(outer, inner func(retry.Arrival) context.Context) func(retry.Arrival) context.Context {
	if outer == nil || inner == nil {
		return either(outer == nil, inner, outer)
	}
	return func(a retry.Arrival) context.Context {
		if ctx := outer(a); ctx != nil {
			a.Context = ctx
		}
		if ctx := inner(a); ctx != nil {
			return ctx
		}
		return a.Context
	}
}

func joinProduced(outer, inner func(context.Context, []*message.Message)) func(context.Context, []*message.Message) {
	if outer == nil || inner == nil {
		return either(outer == nil, inner, outer)
	}
	return func(ctx context.Context, produced []*message.Message) {
		outer(ctx, produced)
		inner(ctx, produced)
	}
}

func joinTraceparent(outer, inner func(context.Context) string) func(context.Context) string {
	if outer == nil || inner == nil {
		return either(outer == nil, inner, outer)
	}
	return func(ctx context.Context) string {
		if text := outer(ctx); text != "" {
			return text
		}
		return inner(ctx)
	}
}

func joinLogFields(outer, inner func(context.Context) watermill.LogFields) func(context.Context) watermill.LogFields {
	if outer == nil || inner == nil {
		return either(outer == nil, inner, outer)
	}
	return func(ctx context.Context) watermill.LogFields { return outer(ctx).Add(inner(ctx)) }
}
