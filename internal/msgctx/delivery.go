// Package msgctx is what a message carries in its context from the subscriber of this library that delivered it. It is
// internal because an app does not need it.
package msgctx

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/gate"
)

// BuilderKey is the metadata key with which the marshaler of a builder marks what it reads for watermill-amqp's
// subscriber, whose messages have a context of its own. The value is the token of the builder. Copies do not have
// it. A handler without the middleware gets it, and passes it on with the metadata.
const BuilderKey = "retry_builder"

// Subscription is one subscription, or one handler's subscriptions. Its messages refer to it. A message that is nacked
// after its handler has returned comes to the retry middleware once more, as a failure.
type Subscription struct {
	Owner any    // what made the subscriber. Comparable
	Retry any    // the *middleware.TieredRetry of the handler; nil: that of the middleware that gets the message
	Queue string // the queue that its copies come back to; empty: that of the handler's topic

	// Stopping is closed when the subscription stops and its messages may still end. Nil: their contexts end then.
	Stopping <-chan struct{}

	// Redelivers states that the backend delivers a message again, perhaps to this process, after it has ended the
	// message's context. The failure of a call that goes on meanwhile is kept for that delivery.
	Redelivers bool

	// Gate limits the handler. Nil: nothing limits it.
	Gate *gate.Gate

	claimed atomic.Bool
	mu      sync.Mutex
	claim   chan struct{} // closed by Claim; nil: nothing waits for it
}

// Claim records that a retry middleware gets the messages.
func (s *Subscription) Claim() {
	if s.claimed.Load() { // a store on every message would slow down the handlers of other processors
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.claimed.Swap(true) && s.claim != nil {
		close(s.claim)
	}
}

// AwaitClaim returns a channel that is closed when a retry middleware gets a message.
func (s *Subscription) AwaitClaim() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim == nil {
		s.claim = make(chan struct{})
		if s.claimed.Load() {
			close(s.claim)
		}
	}
	return s.claim
}

// Claimed reports whether a retry middleware has got a message.
func (s *Subscription) Claimed() bool { return s.claimed.Load() }

type contextKey struct{}

// Delivery is the context of one message, as its subscriber has made it.
type Delivery struct {
	context.Context
	Subscription *Subscription
	state        atomic.Int32
	produced     []*message.Message // what the handler that has returned has produced; it is not read before the state

	// Place is that of the message, where the subscription counts its calls. A message that is set aside, or that waits
	// for confirms after its call, gives it back early. Nil: the subscription does not count.
	Place *gate.Place

	// Lost ends when nothing can settle the message any more: its channel or connection is lost, and the broker delivers
	// it again. The context of the message goes on. Nil: the subscription does not know, or ends the context.
	Lost context.Context

	// Again is how the message is delivered once more, where the backend keeps it in place of publishing a copy. It is
	// set before the message is acked. Nil: the ack ends the message.
	Again *Again
	// Kept is the metadata of a message that was kept before, as its handler gets it.
	Kept message.Metadata
	// GivenUp states that the message was kept as Again.Blocked, and that an operator skips it.
	GivenUp bool

	// Leaving is closed when the message is to go back to its backend as soon as its call has ended: nothing is waited
	// for after it. Nil: never.
	Leaving <-chan struct{}
	// Outlived is the failure of a call that has outlived the delivery. A retry middleware sets it before the message is
	// nacked. Where it is set before the handler is called, the message fails with it, and the handler is not called.
	Outlived error
	// Unproduced is the failure of a message whose handler has succeeded before: the handler is not called. Nil: there is
	// none.
	Unproduced error
}

// ErrOutlived is the cause of the end of a message's context where the call has taken too long.
var ErrOutlived = errors.New("the handler takes longer than nine tenths of Order.ConsumerTimeout")

// Again is how a message that is kept is delivered once more.
type Again struct {
	Metadata message.Metadata
	Due      time.Time // not before
	Blocked  bool      // not before an operator decides
}

// The states of a Delivery.
const (
	waiting   = iota // its handler has not been called, or has failed
	called           // the handler runs
	duplicate        // the handler is not called, because the message was handled before
	returned         // the handler has returned without an error
)

// Value implements context.Context.
func (d *Delivery) Value(key any) any {
	if key == (contextKey{}) {
		return d
	}
	return d.Context.Value(key)
}

// Called, Returned and Failed record what a retry middleware has seen of the handler, and what it has produced.
func (d *Delivery) Called() { d.state.Store(called) }
func (d *Delivery) Returned(produced []*message.Message) {
	d.produced = produced
	d.state.Store(returned)
}
func (d *Delivery) Failed() { d.state.Store(waiting) }

// Inside reports whether a retry middleware has called what asks.
func (d *Delivery) Inside() bool {
	state := d.state.Load()
	return state == called || state == duplicate
}

// Repeat records that the message was handled before, and Repeated reports it, until Returned or Failed.
func (d *Delivery) Repeat()        { d.state.CompareAndSwap(called, duplicate) }
func (d *Delivery) Repeated() bool { return d.state.Load() == duplicate }

// ErrFirstRuns is wrapped by the failure of a message of which another delivery is being handled at the same time. It
// counts no failure.
var ErrFirstRuns = errors.New("another delivery of the message is still being handled")

// Processed reports whether the handler has returned without an error. If the message is nacked then, what failed was
// outside of the retry middleware: for example the router could not publish what the handler had produced.
func (d *Delivery) Processed() bool { return d.state.Load() == returned }

type unpublishedKey struct{}

// Unpublished records in the context of a produced message why it could not be published.
func Unpublished(produced *message.Message, err error) {
	produced.SetContext(context.WithValue(produced.Context(), unpublishedKey{}, err))
}

// Unpublished returns why a message that the handler has produced could not be published; nil: it is not known. Call it
// where Processed is true, and the message is nacked.
func (d *Delivery) Unpublished() error {
	for _, msg := range d.produced {
		if err, found := msg.Context().Value(unpublishedKey{}).(error); found {
			return err
		}
	}
	return nil
}

// NewContext returns a context for one message.
func NewContext(ctx context.Context, s *Subscription) context.Context {
	return &Delivery{Context: ctx, Subscription: s}
}

// Each returns a context for one message, and its place, of a subscription whose context NewContext has made.
func Each(ctx context.Context) (context.Context, *gate.Place) {
	d, found := ctx.Value(contextKey{}).(*Delivery)
	if !found {
		return ctx, &gate.Place{}
	}
	each := &struct { // one allocation
		Delivery
		place gate.Place
	}{Delivery: Delivery{Context: ctx, Subscription: d.Subscription}}
	each.Place = &each.place
	return &each.Delivery, &each.place
}

// Lookup returns the delivery of a message, nil for a message of another subscriber.
func Lookup(msg *message.Message) *Delivery {
	d, _ := msg.Context().Value(contextKey{}).(*Delivery)
	return d
}

type originKey struct{}

// Origin is where a message failed first.
type Origin struct{ Topic, Handler string }

// WithOrigin returns a context for a message that came back by way of a return topic. Topic and handler are where it
// failed first; without it they are those of the router's context. Package relay sets it.
func WithOrigin(ctx context.Context, topic, handler string) context.Context {
	return context.WithValue(ctx, originKey{}, Origin{Topic: topic, Handler: handler})
}

// OriginOf returns what WithOrigin has set.
func OriginOf(ctx context.Context) (o Origin, found bool) {
	o, found = ctx.Value(originKey{}).(Origin)
	return o, found
}

type queueKey struct{}

// queued is the context of a message of a builder.
type queued struct {
	context.Context
	name func(topic string) string
}

// Value implements context.Context.
func (q *queued) Value(key any) any {
	if key == (queueKey{}) {
		return q.name
	}
	return q.Context.Value(key)
}

// WithQueue returns a context for a message of a builder. name returns the work queue of a topic.
func WithQueue(ctx context.Context, name func(topic string) string) context.Context {
	return &queued{ctx, name}
}

// QueueOf returns the work queue of a message that WithQueue has the context of; empty: it is not known.
func QueueOf(msg *message.Message) string {
	name, found := msg.Context().Value(queueKey{}).(func(string) string)
	if !found {
		return ""
	}
	return name(message.SubscribeTopicFromCtx(msg.Context()))
}
