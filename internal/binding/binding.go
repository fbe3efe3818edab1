// Package binding refers from a message to the subscription that has delivered it. It is internal because an app does not
// need it: the subscribers of this library bind their messages.
package binding

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Binding is one subscription, or one handler's subscriptions. Its messages refer to it.
type Binding struct {
	Source any // a *middleware.Source
	Retry  any // the *middleware.TieredRetry of the handler; nil: that of the middleware that gets the message

	// Stopping is closed when the subscription stops and its messages may still end. Nil: their contexts end then.
	Stopping <-chan struct{}

	claimed atomic.Bool

	mu      sync.Mutex
	marked  []mark
	sweepAt int // how many marks there are when those of settled messages are removed
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

// marks are bindings of messages whose context is not ours to set: watermill-amqp sets it after Unmarshal. A message is known by
// its channel of acks, which does not keep its payload in memory. A sync.Map would allocate for each message.
var marks = struct {
	sync.RWMutex
	of map[<-chan struct{}]*Binding
}{of: map[<-chan struct{}]*Binding{}}

// mark is a message that is marked.
type mark struct{ acked, nacked <-chan struct{} }

func (m mark) settled() bool {
	select {
	case <-m.acked:
		return true
	case <-m.nacked:
		return true
	default:
		return false
	}
}

// Mark binds a message without its context, until it is settled. Call Forget when b is no longer used.
func Mark(msg *message.Message, b *Binding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.marked) >= b.sweepAt {
		b.sweep(mark.settled)
		b.sweepAt = 2*len(b.marked) + 1 // so that each message is looked at about twice
	}
	m := mark{msg.Acked(), msg.Nacked()}
	b.marked = append(b.marked, m)
	marks.Lock()
	defer marks.Unlock()
	marks.of[m.acked] = b
}

// Forget removes all marks.
func (b *Binding) Forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweep(func(mark) bool { return true })
}

func (b *Binding) sweep(remove func(mark) bool) {
	marks.Lock()
	defer marks.Unlock()
	b.marked = slices.DeleteFunc(b.marked, func(m mark) bool {
		if !remove(m) {
			return false
		}
		delete(marks.of, m.acked)
		return true
	})
}

// Of returns the binding of a message. It is nil for a message that is not bound, and may be nil for one that is settled.
func Of(msg *message.Message) *Binding {
	if b, found := msg.Context().Value(contextKey{}).(*Binding); found {
		return b
	}
	marks.RLock()
	defer marks.RUnlock()
	return marks.of[msg.Acked()]
}
