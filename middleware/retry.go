package middleware

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/binding"
)

// TieredRetry is the middleware. It is safe for concurrent use by any number of handlers and routers.
type TieredRetry struct {
	config TieredRetryConfig
	policy policy
	logger watermill.LoggerAdapter
}

// NewTieredRetry makes the middleware. It reports all faults of the configuration at once. A nil logger logs nothing.
func NewTieredRetry(config TieredRetryConfig, logger watermill.LoggerAdapter) (*TieredRetry, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid TieredRetryConfig: %w", err)
	}
	config.setDefaults()
	config.Schedule = slices.Clone(config.Schedule)
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return &TieredRetry{
		config: config,
		policy: policy{schedule: config.Schedule, tiers: config.Schedule.Tiers(), tolerance: config.EarlyTolerance},
		logger: logger,
	}, nil
}

// delivery is a message as it was received. It refers to payload and metadata from before the handler, which may replace them.
type delivery struct {
	msg      *message.Message
	uuid     string
	payload  message.Payload
	metadata message.Metadata
	ctx      context.Context
	source   *Source         // whose destinations the copies go to; nil: those of the configuration
	stopping <-chan struct{} // nil: the end of ctx is the only sign of a shutdown
	recorded bool            // the metadata hold a record, or marks of the marshaler
}

// describe describes the delivery for the decision. s is zero before.
func (d *delivery) describe(s *situation, called bool, now time.Time) {
	s.called, s.ended, s.settled, s.origin = called, d.ctx.Err() != nil, called && settled(d.msg), originOf(d.ctx)
	if d.recorded && !(s.record.read(d.metadata, now) && s.record.Topic == s.origin.topic) {
		s.record = Record{}
	}
}

// Middleware wraps a handler. Add it to a handler of a router, before all middlewares that can fail:
//
//	router.AddConsumerHandler(...).AddMiddleware(retry.Middleware)
//
// A success costs no allocation.
func (t *TieredRetry) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		var from *binding.Binding
		if t.config.Source != nil {
			from = binding.Of(msg)
		}
		return t.handle(h, msg, from)
	}
}

// Dispatch is Middleware for a router with handlers of several schedules. A message that brings a TieredRetry of its own, as
// those of a Connection's subscribers do, is retried by that one.
func (t *TieredRetry) Dispatch(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		from := binding.Of(msg)
		if from != nil {
			if own, found := from.Retry.(*TieredRetry); found {
				return own.handle(h, msg, from)
			}
		}
		return t.handle(h, msg, from)
	}
}

// handle calls the handler and settles the message.
func (t *TieredRetry) handle(h message.HandlerFunc, msg *message.Message, from *binding.Binding) (produced []*message.Message, err error) {
	in := delivery{msg: msg, uuid: msg.UUID, payload: msg.Payload, metadata: msg.Metadata, ctx: msg.Context()}
	if from != nil {
		from.Claim()
		in.stopping = from.Stopping
	}
	if in.source, err = t.sourceOf(msg, from); err != nil {
		if settled(msg) { // for example by Watermill's InstantAck: it may be no longer bound, and no copy of it would be published
			return h(msg)
		}
		return nil, t.refuse(&in, err)
	}
	if t.config.DeepCopy {
		in.payload, in.metadata = bytes.Clone(in.payload), maps.Clone(in.metadata)
	}
	in.recorded = carriesRecord(in.metadata)
	if in.recorded || in.ctx.Err() != nil {
		if done, err := t.arrive(&in); done {
			return nil, err
		}
	}

	returned := false
	defer func() {
		switch {
		case !returned:
			produced, err = nil, t.abort(&in, recover())
		case err != nil:
			produced, err = nil, t.fail(&in, err)
		case in.recorded: // Processed, and nothing else to carry out
			removeRecord(produced, in.metadata)
		}
	}()
	produced, err = h(msg)
	returned = true
	return produced, err
}

// arrive settles a message whose handler is not to be called, and reports whether it is such a message.
func (t *TieredRetry) arrive(in *delivery) (done bool, err error) {
	now := time.Now()
	var s situation
	var f failure
	in.describe(&s, false, now)
	if text, found := in.metadata[UnmarshalErrorKey]; found && in.recorded {
		f = t.failureOf(errUnmarshal(text))
	}
	if t.policy.decide(&s, &f, now).outcome == "" {
		return false, nil
	}
	return true, t.settle(in, &s, &f, now)
}

// fail settles a message whose handler failed.
func (t *TieredRetry) fail(in *delivery, err error) error {
	growStack()
	now := time.Now()
	var s situation
	in.describe(&s, true, now)
	f := t.failureOf(err)
	return t.settle(in, &s, &f, now)
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
