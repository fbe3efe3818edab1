// Package binding refers from a message to the subscription that has delivered it. It is internal because an app does not
// need it: the subscribers of this library bind their messages.
package binding

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/gate"
)

// Binding is one subscription, or one handler's subscriptions. Its messages refer to it.
type Binding struct {
	Source any // a *middleware.Source
	Retry  any // the *middleware.TieredRetry of the handler; nil: that of the middleware that gets the message

	// Stopping is closed when the subscription stops and its messages may still end. Nil: their contexts end then.
	Stopping <-chan struct{}

	// Renacked states that a message that is nacked after its handler has returned comes to the retry middleware once more, as a failure.
	Renacked bool

	// Gate limits how many messages the handler has in flight. Nil: nothing limits it.
	Gate *gate.Gate

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

// Delivery is the context of one bound message, as its subscriber has made it.
type Delivery struct {
	context.Context
	Binding *Binding
	state   atomic.Int32
	aside   chan<- struct{} // receives when the message is set aside; nil: the subscription cannot do that
}

// The states of a Delivery.
const (
	waiting  = iota // its handler has not been called, or has failed
	called          // the handler runs
	returned        // the handler has returned without an error
)

// Value implements context.Context.
func (d *Delivery) Value(key any) any {
	if key == (contextKey{}) {
		return d
	}
	return d.Context.Value(key)
}

// Called, Returned and Failed record what a retry middleware has seen of the handler.
func (d *Delivery) Called()   { d.state.Store(called) }
func (d *Delivery) Returned() { d.state.Store(returned) }
func (d *Delivery) Failed()   { d.state.Store(waiting) }

// Offer makes a subscription's channel known, with room for one, before the message of ctx is handed out. It receives when the
// message is to take no place of the handler any more.
func Offer(ctx context.Context, aside chan<- struct{}) {
	if d, found := ctx.Value(contextKey{}).(*Delivery); found {
		d.aside = aside
	}
}

// SetsAside reports whether the subscription can set the message aside.
func (d *Delivery) SetsAside() bool { return d.aside != nil }

// SetAside asks the subscription to go on as if the message was settled. It stays unacknowledged.
func (d *Delivery) SetAside() {
	select {
	case d.aside <- struct{}{}:
	default:
	}
}

// Processed reports whether the handler has returned without an error. If the message is nacked then, what failed was outside of the
// retry middleware: for example the router could not publish what the handler had produced.
func (d *Delivery) Processed() bool { return d.state.Load() == returned }

// NewContext returns a context for one message, which binds it.
func NewContext(ctx context.Context, b *Binding) context.Context {
	return &Delivery{Context: ctx, Binding: b}
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

// Each returns a context for one message of a subscription whose context NewContext has made.
func Each(ctx context.Context) context.Context {
	d, found := ctx.Value(contextKey{}).(*Delivery)
	if !found {
		return ctx
	}
	return &Delivery{Context: ctx, Binding: d.Binding}
}

// Of returns the binding of a message. It is nil for a message that is not bound, and may be nil for one that is settled.
func Of(msg *message.Message) *Binding {
	b, _ := Lookup(msg)
	return b
}

// Lookup is Of, with the Delivery, which is nil for a message that is bound by a mark.
func Lookup(msg *message.Message) (*Binding, *Delivery) {
	if d, found := msg.Context().Value(contextKey{}).(*Delivery); found {
		return d.Binding, d
	}
	marks.RLock()
	defer marks.RUnlock()
	return marks.of[msg.Acked()], nil
}
