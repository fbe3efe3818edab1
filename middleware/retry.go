package middleware

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/binding"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/warning"
)

// TieredRetry is the middleware. It is safe for concurrent use by any number of handlers and routers.
type TieredRetry struct {
	config TieredRetryConfig
	policy policy
	logger watermill.LoggerAdapter
	warned atomic.Bool // of a deadline that was set outside

	accepted atomic.Pointer[Source] // the last one of another owner

	pauses         atomic.Bool // handlers may pause, so that they have breakers
	breakers       atomic.Pointer[breakers]
	failedPanicked atomic.Bool
}

// NewTieredRetry makes the middleware. It reports all faults of the configuration at once. A nil logger logs nothing.
func NewTieredRetry(config TieredRetryConfig, logger watermill.LoggerAdapter) (*TieredRetry, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid TieredRetryConfig: %w", err)
	}
	config.setDefaults()
	config.Schedule = slices.Clone(config.Schedule)
	if config.Breaker != nil {
		own := *config.Breaker
		config.Breaker = &own
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	t := &TieredRetry{
		config: config,
		policy: config.policy(),
		logger: logger,
	}
	t.pauses.Store(config.Breaker != nil || slices.ContainsFunc(config.Rules, func(r Rule) bool { return r.Then.pause > 0 }))
	return t, nil
}

// delivery is a message as it was received. It refers to payload and metadata from before the handler, which may replace them.
type delivery struct {
	msg      *message.Message
	uuid     string
	payload  message.Payload
	metadata message.Metadata
	delayed  string // metadata of components/delay from before the handler
	ctx      context.Context
	bound    *binding.Binding // nil: the subscriber is not one of this library
	own      *binding.Delivery
	source   *Source   // whose destinations the copies go to; nil: those of the configuration
	recorded bool      // the metadata hold a record, or marks of the marshaler
	began    time.Time // when the handler was called; zero where it is not measured
	took     time.Duration

	observers *observers      // nil: there are none
	observed  context.Context // of the observers; nil: they have not changed it
	arrived   backoff.Tier    // on which the message waited first; 0: on none, or nothing observes
	lateness  time.Duration
	reported  bool // its outcome, to the observers

	breaker *breaker // nil: the handler never pauses
	ticket  ticket
	place   *gate.Place // under the limit of a gate; nil: none is needed
}

// shuttingDown reports whether the subscription has ended. A context whose deadline is over is no sign of it: a middleware outside
// may have set it.
func (d *delivery) shuttingDown() bool {
	if d.bound == nil || d.bound.Stopping == nil {
		return d.ctx.Err() == context.Canceled
	}
	select {
	case <-d.bound.Stopping:
		return true
	default:
		return false
	}
}

// gate limits the handler; nil: nothing does.
func (d *delivery) gate() *gate.Gate {
	if d.bound == nil {
		return nil
	}
	return d.bound.Gate
}

// stopping is closed when the subscription ends.
func (d *delivery) stopping() <-chan struct{} {
	if d.bound == nil || d.bound.Stopping == nil {
		return d.ctx.Done()
	}
	return d.bound.Stopping
}

// sleep reports false, early, when the subscription ends or the backend takes the message back. The end of a deadline that a middleware
// outside has set is neither.
func (d *delivery) sleep(wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var taken <-chan struct{}
	if d.own != nil {
		taken = d.own.Done()
	}
	for stopping := d.stopping(); ; stopping = nil {
		select {
		case <-timer.C:
			return true
		case <-taken:
			return false
		case <-stopping:
			if d.shuttingDown() {
				return false
			}
		}
	}
}

// takenBack reports whether the backend has ended the message's context while the subscription goes on, as NATS does after its
// AckWait: it delivers the message again, and an ack would not be sent.
func (d *delivery) takenBack() bool {
	return d.own != nil && d.own.Err() != nil && !d.shuttingDown()
}

// describe describes the delivery for the decision. s is zero before. While a subscription shuts down, a message whose context has not
// ended may still fail by itself, and counts: err is what its handler has returned.
func (t *TieredRetry) describe(in *delivery, s *situation, called bool, err error, now time.Time) {
	s.called, s.settled, s.origin = called, called && settled(in.msg), originOf(in.ctx)
	s.ended = in.takenBack() || in.shuttingDown() && (!called || in.ctx.Err() != nil || isCanceled(err))
	if in.recorded && !(s.record.read(in.metadata, now) && s.record.Topic == s.origin.topic) {
		s.record = Record{}
	}
	if _, counted := in.metadata[FailuresKey]; !counted && t.config.DelayArrivals {
		s.delayed, _ = delayIn(in.metadata)
	}
	if t.config.MaxAgeFrom != nil {
		s.sentAt = t.sentAt(in)
	}
}

// isCanceled reports whether an error is that of a context that was cancelled.
func isCanceled(err error) (canceled bool) {
	defer func() { _ = recover() }() // an error whose methods panic
	return errors.Is(err, context.Canceled)
}

// sentAt is zero where MaxAgeFrom panics.
func (t *TieredRetry) sentAt(in *delivery) (at time.Time) {
	defer func() {
		if recovered := recover(); recovered != nil {
			t.logger.Error("MaxAgeFrom panicked, the age is that of the first failure", newPanicError(recovered), t.fields(in))
		}
	}()
	return t.config.MaxAgeFrom(in.msg)
}

// Middleware wraps a handler. Add it to a handler of a router, before all middlewares that can fail:
//
//	router.AddConsumerHandler(...).AddMiddleware(retry.Middleware)
//
// A success costs no allocation.
func (t *TieredRetry) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		var from *binding.Binding
		var own *binding.Delivery
		if t.config.Source != nil {
			from, own = binding.Lookup(msg)
		}
		return t.handle(h, msg, from, own)
	}
}

// Dispatch is Middleware for a router with handlers of several schedules. A message that brings a TieredRetry of its own, as
// those of a Connection's subscribers do, is retried by that one.
func (t *TieredRetry) Dispatch(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		from, own := binding.Lookup(msg)
		if from != nil {
			if of, found := from.Retry.(*TieredRetry); found {
				return of.handle(h, msg, from, own)
			}
		}
		return t.handle(h, msg, from, own)
	}
}

// handle calls the handler and settles the message.
func (t *TieredRetry) handle(h message.HandlerFunc, msg *message.Message, from *binding.Binding, own *binding.Delivery) (produced []*message.Message, err error) {
	in := delivery{msg: msg, uuid: msg.UUID, payload: msg.Payload, metadata: msg.Metadata, ctx: msg.Context(), bound: from, own: own}
	if from != nil {
		from.Claim()
	}
	if in.source, err = t.sourceOf(msg, from); err != nil {
		if settled(msg) { // for example by Watermill's InstantAck: it may be no longer bound, and no copy of it would be published
			return h(msg)
		}
		return nil, t.refuse(&in, err)
	}
	in.observers = t.config.Observers.load()
	if t.config.DeepCopy {
		in.payload, in.metadata = bytes.Clone(in.payload), maps.Clone(in.metadata)
	}
	in.recorded, in.delayed = carriesRecord(in.metadata), in.metadata[delay.DelayedUntilKey]
	if !t.warned.Load() {
		t.warnOfDeadline(&in)
	}
	if in.recorded || in.ctx.Err() != nil || t.config.DelayArrivals && in.metadata[delay.DelayedForKey] != "" || t.config.MaxAgeFrom != nil {
		if done, err := t.arrive(&in); done {
			return nil, err
		}
	}
	if !t.enter(&in) {
		return nil, t.giveBackPaused(&in)
	}
	if in.breaker != nil || in.place != nil {
		defer in.leave()
	}
	if t.config.Observe != nil || in.observers != nil {
		in.began = time.Now()
	}
	if in.observers != nil && (in.recorded || in.observers.begin) {
		t.begin(&in)
	}
	if in.own != nil {
		in.own.Called()
	}

	returned := false
	defer func() {
		if in.observers != nil || t.config.Observe != nil {
			defer t.reportLost(&in)
		}
		defer in.restore()
		if !in.began.IsZero() {
			in.took = time.Since(in.began)
		}
		switch {
		case !returned:
			produced, err = nil, t.abort(&in, recover())
		case err == nil && slices.Contains(produced, nil):
			produced, err = nil, t.fail(&in, ErrNilMessage)
		case err != nil:
			produced, err = nil, t.fail(&in, err)
		default:
			t.succeed(&in, produced)
		}
	}()
	produced, err = h(msg)
	returned = true
	return produced, err
}

// begin reads where the message comes from, and calls the hooks Begin.
func (t *TieredRetry) begin(in *delivery) {
	from := originOf(in.ctx)
	a := Arrival{Context: in.ctx, Topic: from.topic, Handler: from.handler, Message: in.msg}
	if in.recorded && !(a.Record.read(in.metadata, in.began) && a.Record.Topic == from.topic) {
		a.Record = Record{}
	}
	if due := a.Record.DueAt; !due.IsZero() && !a.Record.LastFailedAt.IsZero() {
		in.arrived, _, _ = t.policy.place(due.Sub(a.Record.LastFailedAt), nil)
		in.lateness = max(in.began.Sub(due), 0)
	}
	if !in.observers.begin {
		return
	}
	a.Tier, a.Lateness = in.arrived, in.lateness
	if in.observed = in.observers.arrived(a); in.observed != nil {
		in.msg.SetContext(in.observed)
	}
}

// restore gives the message its own context back: a second call with it must not begin within the first one. The subscriber may read the
// context of a message that is settled.
func (in *delivery) restore() {
	if in.observed != nil && !settled(in.msg) {
		in.msg.SetContext(in.ctx)
	}
}

// seen is the message's context, as the observers have made it.
func (in *delivery) seen() context.Context {
	if in.observed != nil {
		return in.observed
	}
	return in.ctx
}

// ErrNotPublished is the failure of a message whose handler has succeeded, and which was nacked nevertheless: the router could not
// publish what the handler had produced, or a middleware outside of the retry middleware has failed. The log of the router has the
// error. A Connection to RabbitMQ retries such a message. On other backends it is delivered again at once, and counts no failure.
var ErrNotPublished = errors.New("the router nacked the message after its handler had succeeded: it could not publish what the handler " +
	"produced, or a middleware outside failed")

// ErrNilMessage is the failure of a handler that returns a nil message. The router's publishers panic on it, where no middleware
// sees it.
var ErrNilMessage = errors.New("the handler returned a nil message")

// warnOfDeadline warns once if a middleware outside has set a deadline: it also ends the time in which a copy could be held.
func (t *TieredRetry) warnOfDeadline(in *delivery) {
	deadline, found := in.ctx.Deadline()
	if !found {
		return
	}
	if in.own != nil {
		if subscribers, found := in.own.Deadline(); found && !deadline.Before(subscribers) {
			return
		}
	}
	if t.warned.Swap(true) {
		return
	}
	warning.Log(t.logger, "A middleware outside of the retry middleware has set a deadline, such as Timeout of a router: a handler that exceeds it "+
		"has failed. Add Timeout after the retry middleware", t.fields(in))
}

// arrive settles a message whose handler is not to be called, and reports whether it is such a message.
func (t *TieredRetry) arrive(in *delivery) (done bool, err error) {
	now := time.Now()
	var s situation
	var f failure
	t.describe(in, &s, false, nil, now)
	if text, found := in.metadata[UnmarshalErrorKey]; found && in.recorded {
		f = t.failureOf(errUnmarshal(text))
	}
	d := t.policy.decide(&s, &f, now)
	if wait := d.waitHere(&s); wait > 0 {
		if !in.sleep(wait) {
			s.ended = true
		}
		now = now.Add(wait)
		d = t.policy.decide(&s, &f, now)
	}
	if d.outcome == "" {
		return false, nil
	}
	return true, t.settle(in, &s, &f, now)
}

// shortestRound is how long a round of a parked message takes at least. Where a tier is shorter, the middleware waits for the
// difference: a message with a long delay would otherwise be parked in a hot loop.
const shortestRound = 250 * time.Millisecond

// waitHere returns how long the middleware waits itself before it decides again, and takes it from what remains. 0: not at all.
func (d *decision) waitHere(s *situation) time.Duration {
	wait := min(shortestRound-time.Duration(d.tier), max(s.record.Remaining, s.delayed))
	if d.outcome != Parked || wait <= 0 {
		return 0
	}
	s.record.Remaining, s.delayed = s.record.Remaining-wait, s.delayed-wait
	return wait
}

// succeed records and reports a success, and removes the record of the message from what its handler has produced.
func (t *TieredRetry) succeed(in *delivery, produced []*message.Message) {
	if in.own != nil && !settled(in.msg) { // else a nack is the handler's own
		in.own.Returned()
	}
	if in.breaker != nil {
		in.breaker.report(in.ticket, good)
	}
	if in.observers != nil && len(produced) > 0 {
		in.observers.produced(in.seen(), produced)
	}
	if t.config.Observe != nil || in.observers != nil {
		now := time.Now()
		var s situation
		t.describe(in, &s, true, nil, now)
		d := t.policy.decide(&s, &failure{}, now)
		t.report(in, &d, Destination{}, &failure{}, nil)
	}
	if in.recorded {
		removeRecord(produced, in.metadata)
	}
}

// fail settles a message whose handler failed.
func (t *TieredRetry) fail(in *delivery, err error) error {
	growStack()
	if in.own != nil {
		in.own.Failed()
	}
	now := time.Now()
	var s situation
	t.describe(in, &s, true, err, now)
	f := t.failureOf(err)
	if !s.ended {
		f.action, f.rule = t.actionFor(&s.record, err)
	}
	if f.requested == 0 && in.msg.Metadata[delay.DelayedUntilKey] != in.delayed {
		f.requested, _ = delayIn(in.msg.Metadata) // as Watermill's DelayOnError sets it
	}
	if t.policy.jitter > 0 {
		s.chance = rand.Float64()
	}
	t.observeFailure(in, &s, &f)
	if in.observers != nil {
		if traceparent := in.observers.traceparent(in.seen()); traceparent != "" {
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
	return min(d, backoff.MaxDelay), true
}

// settleStack is about how much stack a failure needs, with its publisher and marshaler.
const settleStack = 3 << 10

// growStack makes the stack of the goroutine large enough for a failure. The router starts a goroutine for each message, so the
// stack would grow later, more than once, and with more frames to copy.
//
//go:noinline
func growStack() {
	var frame [settleStack]byte
	use(&frame)
}

//go:noinline
func use(*[settleStack]byte) {}

// abort settles a message whose handler panicked or, where nothing was recovered, ended its goroutine. In the second case the
// router never sees what the middleware returns, so abort acks or nacks the message itself.
func (t *TieredRetry) abort(in *delivery, recovered any) error {
	if recovered != nil {
		panicked := newPanicError(recovered)
		t.logger.Error("Handler panicked", t.failureOf(panicked).logged(), t.fields(in).Add(watermill.LogFields{"stack": string(panicked.Stack)}))
		return t.fail(in, panicked)
	}
	err := t.fail(in, ErrGoexit)
	if err == nil {
		in.msg.Ack()
	} else {
		in.msg.Nack()
	}
	return err
}

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
