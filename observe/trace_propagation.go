package observe

import (
	"context"
	"maps"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// maxTraceparent is the longest text that is read as a traceparent. The failure record keeps no longer one.
const maxTraceparent = 128

var w3c = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

// propagators finds the propagator.
type propagators struct {
	configured propagation.TextMapPropagator                 // nil: the one of the process
	global     atomic.Pointer[propagation.TextMapPropagator] // the propagator of the process, once the app has set one
}

// current is the configured one, else the one that the app has set for the process, else that of W3C.
func (p *propagators) current() propagation.TextMapPropagator {
	if p.configured != nil {
		return p.configured
	}
	if known := p.global.Load(); known != nil {
		return *known
	}
	set := otel.GetTextMapPropagator()
	if len(set.Fields()) == 0 { // OpenTelemetry's default, which propagates nothing
		return w3c
	}
	p.global.Store(&set)
	return set
}

// origin is what led to an attempt.
type origin struct {
	parent   context.Context   // the parent of the span of the attempt
	beside   context.Context   // the parent of the spans beside it
	producer trace.SpanContext // the span in the message's metadata; not valid: it has none
	text     string            // the trace context of the attempt before
	previous trace.SpanContext // the span in text
	parsed   bool
}

// originOf reads the producer's context. A span that the context already has is the parent of the attempt, because it
// is that of the app's own middleware.
func (t *traces) originOf(ctx context.Context, metadata message.Metadata, previous string) origin {
	outer := trace.SpanContextFromContext(ctx)
	extracted := t.propagators.current().Extract(ctx, propagation.MapCarrier(metadata))
	from := origin{parent: extracted, beside: extracted, producer: trace.SpanContextFromContext(extracted),
		text: previous}
	if outer.IsValid() {
		from.parent = ctx
		if from.producer.Equal(outer) && !outer.IsRemote() { // the metadata have none
			from.producer = trace.SpanContext{}
		}
		return from
	}
	if !from.producer.IsValid() {
		if last := from.previousAttempt(); last.IsValid() {
			from.parent = trace.ContextWithRemoteSpanContext(extracted, last)
			from.beside = from.parent
		}
	}
	return from
}

// previousAttempt returns the span of the attempt before. Any publisher can write the text: what is not a traceparent
// is ignored.
func (o *origin) previousAttempt() trace.SpanContext {
	if !o.parsed {
		o.parsed = true
		o.previous = parseTraceparent(o.text)
	}
	return o.previous
}

func parseTraceparent(text string) trace.SpanContext {
	if text == "" || len(text) > maxTraceparent {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{traceparentKey: text}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

const traceparentKey = "traceparent"

// traceparentOf returns a span as W3C Trace Context, or "".
func traceparentOf(span trace.SpanContext) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), span), carrier)
	return carrier[traceparentKey]
}

// injected returns the metadata of a produced message with a context in it. A key that the handler has set stays: one
// with another value than the inbound message has. The map is a copy, because handlers pass the inbound message's own
// on.
func injected(
	propagator propagation.TextMapPropagator, ctx context.Context, metadata, inbound message.Metadata,
) message.Metadata {
	carrier := propagation.MapCarrier{}
	propagator.Inject(ctx, carrier)
	with := make(message.Metadata, len(metadata)+len(carrier))
	maps.Copy(with, metadata)
	for key, value := range carrier {
		if own, found := metadata[key]; !found || own == inbound[key] {
			with[key] = value
		}
	}
	return with
}
