// Package suspect carries, from one attempt to publish a message to the next, that a broker has closed a channel
// because of it. It is internal because an app does not need it: the retry middleware and the publisher share it.
package suspect

import (
	"context"
	"sync/atomic"
)

type key struct{}

// With returns a context for all attempts of one message.
func With(ctx context.Context, closed *atomic.Bool) context.Context {
	return context.WithValue(ctx, key{}, closed)
}

// Of returns what With was given, or nil.
func Of(ctx context.Context) *atomic.Bool {
	closed, _ := ctx.Value(key{}).(*atomic.Bool)
	return closed
}
