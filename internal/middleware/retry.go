package middleware

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tieredretry/watermill-retry/internal/options"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	poison "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/warning"
	"github.com/tieredretry/watermill-retry/retry"
)

// shutdownPause is longer than ten of the rounds that watermill-amqp's subscriber needs to see that its context has
// ended.
const shutdownPause = time.Second

// TieredRetry is the middleware. It is safe for concurrent use by any number of handlers and routers.
type TieredRetry struct {
	config  retry.Policy // with its defaults
	policy  policy       // what decisions need of config and traits
	backend backend.Backend
	traits  backend.Traits
	logger  watermill.LoggerAdapter
	warned  atomic.Bool // whether the warning of a deadline that was set outside was logged
	taken   atomic.Bool // a failure, by a PoisonQueue inside, and that was logged
	cut     atomic.Bool // a requested delay, and that was logged

	outlived outlived

	pauses         atomic.Bool // handlers may pause, so that they have breakers
	breakers       atomic.Pointer[breakers]
	failedPanicked atomic.Bool
	keyPanicked    atomic.Bool
}

// New makes the middleware for handlers with a policy. Apps do not call it: a Connection, or NewTieredRetry of a
// builder of package config, makes the middleware. New reports all faults of the policy at once. A nil logger logs
// nothing.
func New(own retry.Policy, by backend.Backend, logger watermill.LoggerAdapter) (*TieredRetry, error) {
	err := own.Validate()
	if by == nil {
		err = errors.Join(err, errors.New("the backend is nil: let a Connection or a builder make the middleware"))
	}
	if err != nil {
		return nil, faults.Of("invalid Policy", err)
	}
	own = options.WithDefaults(own)
	traits, err := by.Use(own)
	if err != nil {
		return nil, err
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	t := &TieredRetry{
		config: own, policy: policyOf(own, traits.TiersWait), backend: by, traits: traits, logger: logger,
	}
	t.policy.blocks = traits.Blocks
	ruled := func(r retry.Rule) bool { return r.Then.Pause > 0 }
	t.pauses.Store(own.Breaker != nil || slices.ContainsFunc(own.Rules, ruled))
	return t, nil
}

// Middleware wraps a handler. Add it to a handler of a router, before all middlewares that can fail:
//
//	router.AddConsumerHandler(...).AddMiddleware(tiered.Middleware)
//
// A success costs no allocation, or one where a builder made the TieredRetry. Where a handler has a Breaker and has
// produced messages, it costs a goroutine, which waits until the router has published them.
func (t *TieredRetry) Middleware(h message.HandlerFunc) message.HandlerFunc {
	seen := &deadlines{}
	return func(msg *message.Message) ([]*message.Message, error) {
		var own *msgctx.Delivery
		if source := t.traits.Source; source != nil && source.Token == "" {
			own = msgctx.Lookup(msg)
		}
		return t.handle(h, msg, own, seen)
	}
}

// Dispatch is Middleware for a router with handlers of several schedules. A message that brings a TieredRetry of its
// own, as those of a Connection's subscribers do, is retried by that one.
func (t *TieredRetry) Dispatch(h message.HandlerFunc) message.HandlerFunc {
	seen := &deadlines{}
	return func(msg *message.Message) ([]*message.Message, error) {
		own := msgctx.Lookup(msg)
		if own != nil {
			if of, found := own.Subscription.Retry.(*TieredRetry); found {
				return of.handle(h, msg, own, seen)
			}
		}
		return t.handle(h, msg, own, seen)
	}
}

// handle settles a message. Where a function of the app ends the goroutine with runtime.Goexit, only what is deferred
// here still runs.
func (t *TieredRetry) handle(
	h message.HandlerFunc, msg *message.Message, own *msgctx.Delivery, seen *deadlines,
) (produced []*message.Message, err error) {
	var in delivery // a literal would need its room twice on the stack of each call
	in.msg, in.uuid, in.payload, in.metadata, in.ctx = msg, msg.UUID, msg.Payload, msg.Metadata, msg.Context()
	in.own, in.deadlines = own, seen
	if own != nil {
		in.bound = own.Subscription
		if own.Inside() { // of a retry middleware that Watermill has kept from a handler with the same name
			return h(msg)
		}
	}
	defer func() {
		defer t.outlived.end(&in)
		in.restore()
		if in.finished {
			in.leave()
		} else {
			t.exited(&in)
		}
	}()
	if produced, err = t.process(h, &in); err != nil {
		in.putTokenBack()
	}
	in.finished = true
	return produced, err
}

// exited settles a message whose goroutine ends, because the router never gets what the middleware would return. A
// handler that ends its goroutine has failed. The hooks that are called here may end it once more, so each step is
// deferred.
func (t *TieredRetry) exited(in *delivery) {
	decided := false
	defer func() {
		defer in.leave()
		switch {
		case in.safe:
			in.msg.Ack()
			return
		case !decided && !settled(in.msg):
			in.pace()
		}
		in.msg.Nack()
	}()
	defer t.reportExited(in)
	if in.calling {
		in.called()
		in.safe = t.fail(in, panics.ErrGoexit) == nil
		decided = true
	}
}

// process calls the handler, unless the message is not for it, and settles the message.
func (t *TieredRetry) process(h message.HandlerFunc, in *delivery) (produced []*message.Message, err error) {
	msg := in.msg
	if in.bound != nil {
		in.bound.Claim()
	}
	if at, found := in.ctx.Deadline(); found {
		t.noteDeadline(in, at)
	}
	if own := t.traits.Source; own != nil && !comesFrom(own, in) {
		if settled(msg) { // for example by Watermill's InstantAck: no copy of it would be published
			return h(msg)
		}
		return nil, t.refuse(in)
	}
	t.takeToken(in)
	in.observers = t.traits.Observers.Load()
	if t.config.DeepCopy {
		// The handler gets the copies. The subscriber may read the bytes of the delivery again, after a nack.
		msg.Payload, msg.Metadata = bytes.Clone(in.payload), maps.Clone(in.metadata)
	}
	in.recorded, in.delayed = carriesRecord(in.metadata), in.metadata[delay.DelayedUntilKey]
	if in.recorded {
		growStack() // to read a record needs as much
		in.readRecord()
	}
	var failed error // what an earlier call has left
	switch {
	case in.own != nil && in.own.Unproduced != nil:
		failed = in.own.Unproduced
	case in.bound != nil && in.bound.Redelivers && in.uuid != "":
		failed = t.outlived.begin(in)
	case in.own != nil:
		failed = in.own.Outlived
	}
	if in.recorded || in.ctx.Err() != nil || t.traits.DelayArrivals && in.metadata[delay.DelayedForKey] != "" ||
		t.config.MaxAgeFrom != nil {
		if done, err := t.arrive(in); done {
			return nil, err
		}
	}
	if !t.enter(in, failed != nil) {
		return nil, t.settleUncalled(in, 0)
	}
	if done, err := t.admit(in, failed != nil); done { // the failure would be lost
		return nil, err
	}
	if in.observers != nil {
		in.began = time.Now()
		t.begin(in)
	}
	if failed != nil {
		return nil, t.fail(in, failed)
	}
	if in.own != nil {
		in.own.Called()
	}
	poisoned := msg.Metadata[poison.ReasonForPoisonedKey]
	in.calling = true
	panicked := panics.Call(func() { produced, err = h(msg) })
	in.called()
	switch {
	case panicked != nil:
		err = panicked
	case err == nil && slices.Contains(produced, nil):
		err = panics.ErrNilMessage
	}
	if err != nil {
		return nil, t.fail(in, err)
	}
	if msg.Metadata[poison.ReasonForPoisonedKey] != poisoned && !t.taken.Swap(true) {
		warning.Log(t.logger, "Watermill's PoisonQueue inside of the retry middleware has taken a failure: the message "+
			"has no retry and no failure record. Remove PoisonQueue from the router and the handler", t.fields(in))
	}
	t.succeed(in, produced)
	return produced, nil
}

// arrive settles a message whose handler is not to be called, and reports whether it is such a message.
func (t *TieredRetry) arrive(in *delivery) (done bool, err error) {
	now := time.Now()
	var s situation
	var f failure
	t.describe(in, &s, false, nil, now)
	if text, found := in.metadata[recordkey.UnmarshalError]; found && in.recorded {
		f = t.failureOf(errUnmarshal(text))
	}
	if d := t.policy.decide(&s, &f, now); d.outcome == "" {
		return false, nil
	}
	return true, t.settle(in, &s, &f, now)
}

// succeed records and reports a success, and removes the record of the message from what its handler has produced. A
// duplicate shows nothing about the handler: the breaker does not count it. What was produced then may have the record
// of another delivery.
func (t *TieredRetry) succeed(in *delivery, produced []*message.Message) {
	repeat := in.own != nil && in.own.Repeated()
	if in.own != nil && !settled(in.msg) { // else a nack is the handler's own
		in.own.Returned(produced)
	}
	if in.breaker != nil && !repeat {
		t.observeSuccess(in, produced)
	}
	if in.observers != nil && len(produced) > 0 {
		in.observers.Produced(in.seen(), produced)
	}
	if in.observers != nil {
		now := time.Now()
		var s situation
		t.describe(in, &s, true, nil, now)
		if s.repeat = repeat; repeat {
			in.took = 0 // the handler was not called
		}
		d := t.policy.decide(&s, &failure{}, now)
		t.report(in, &d, backend.Destination{}, &failure{}, nil)
	}
	if in.recorded || repeat {
		removeRecord(produced, in.metadata)
	}
	if len(produced) > 0 && (in.breaker == nil || repeat || !in.breaker.wants(in.pass.of, good)) {
		in.endCall()
	}
}

// fail settles a message whose handler failed.
func (t *TieredRetry) fail(in *delivery, err error) error {
	growStack()
	if in.own != nil {
		in.own.Failed()
	}
	now := time.Now()
	panicked, err := panicOf(err)
	var s situation
	t.describe(in, &s, true, err, now)
	f := t.failureOf(err)
	if panicked != nil {
		t.logger.Error("Handler panicked", f.logged(),
			t.fields(in).Add(watermill.LogFields{"stack": string(panicked.Stack)}))
	}
	if !s.ended {
		f.action, f.rule = t.actionFor(in, &s.record, err)
	}
	if t.policy.jitter > 0 {
		s.chance = rand.Float64()
	}
	t.observeFailure(in, &s, &f)
	if f.requested == 0 && in.msg.Metadata[delay.DelayedUntilKey] != in.delayed {
		f.requested, _ = delayIn(in.msg.Metadata) // as Watermill's DelayOnError sets it
	}
	if in.observers != nil {
		if traceparent := in.observers.Traceparent(in.seen()); traceparent != "" {
			s.record.Traceparent = traceparent
		}
	}
	return t.settle(in, &s, &f, now)
}

// delayIn returns the delay that components/delay has written.
func delayIn(metadata message.Metadata) (time.Duration, bool) {
	d, err := time.ParseDuration(metadata[delay.DelayedForKey])
	if err != nil || d <= 0 {
		return 0, false
	}
	return d, true
}

// settleStack is about how much stack a failure needs, with its publisher and marshaler. With less, the stack grows
// once more in their deepest calls.
const settleStack = 7 << 10

// growStack makes the stack of the goroutine large enough for a failure. The router starts a goroutine for each
// message, so the stack would grow later, more than once, and with more frames to copy: that more than doubles the time
// of BenchmarkFailure in internal/rabbitmq/headers.
//
//go:noinline
func growStack() {
	var frame [settleStack]byte
	use(&frame)
}

//go:noinline
func use(*[settleStack]byte) {}

func settled(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}
