// Package binding tells the retry middleware which subscriber has delivered a message. It is internal because an app does not
// need it: the subscribers of this library bind their messages.
package binding

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Binding is one subscription, or one handler's subscriptions. Its messages refer to it.
type Binding struct {
	Source any // a *middleware.Source
	Retry  any // the *middleware.TieredRetry of the handler; nil: that of the middleware that gets the message

	claimed atomic.Bool
}

// Claim records that a retry middleware gets the messages.
func (b *Binding) Claim() {
	if !b.claimed.Load() { // a store on every message would slow down the handlers of other processors
		b.claimed.Store(true)
	}
}

// Claimed reports whether a retry middleware has got a message.
func (b *Binding) Claimed() bool { return b.claimed.Load() }

type contextKey struct{}

// NewContext returns a context that binds the messages that have it.
func NewContext(ctx context.Context, b *Binding) context.Context {
	return context.WithValue(ctx, contextKey{}, b)
}

// marks are bindings of messages whose context is not ours to set: watermill-amqp sets it after Unmarshal.
var marks sync.Map // of *Binding, by weak.Pointer[message.Message]

// Mark binds a message without its context.
func Mark(msg *message.Message, b *Binding) {
	key := weak.Make(msg)
	marks.Store(key, b)
	runtime.AddCleanup(msg, func(key weak.Pointer[message.Message]) { marks.Delete(key) }, key)
}

// Of returns the binding of a message, or nil.
func Of(msg *message.Message) *Binding {
	if b, found := msg.Context().Value(contextKey{}).(*Binding); found {
		return b
	}
	if b, found := marks.Load(weak.Make(msg)); found {
		return b.(*Binding)
	}
	return nil
}
