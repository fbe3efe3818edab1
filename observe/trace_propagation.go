package observe

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/panics"
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
	parsed   bool              // the text was read
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

// previousAttempt returns the span of the attempt before. It reads the text when it is called first, because a message
// that is not sampled and has a producer needs it not.
func (o *origin) previousAttempt() trace.SpanContext {
	if !o.parsed {
		o.parsed, o.previous = true, parseTraceparent(o.text)
	}
	return o.previous
}

// parseTraceparent returns the span of a text. Any publisher can write it: what is not a traceparent is ignored.
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

// Publisher returns a publisher that makes a span of kind producer, "send <topic>", for each message, and publishes a
// copy of the message with the context of this span in its metadata. Neither the message nor its metadata change. The
// parent of the span is the one in the message's context, else the one in its metadata. The spans of one call end
// when the call returns.
//
// Use it for the app's own messages:
//
//	publisher := observe.Publisher(rabbit.Publisher(), otel.GetTracerProvider())
//
// Only the Propagator of the first Config is used. The messages that handlers return have the context of their
// attempt without this publisher. Where tracers is nil, the publisher itself is returned. The result is as safe for
// concurrent use as the publisher is, and its Close closes the publisher.
func Publisher(publisher message.Publisher, tracers trace.TracerProvider, config ...Config) message.Publisher {
	if tracers == nil {
		return publisher
	}
	var first Config
	if len(config) > 0 {
		first = config[0]
	}
	return tracedPublisher{publisher, traceObserver(tracers, first, backend.Observed{System: systemOf(publisher)})}
}

// systemOf returns the backend of a publisher as OpenTelemetry names it, or its Go type where OpenTelemetry has no
// name.
func systemOf(publisher message.Publisher) string {
	of := reflect.TypeOf(publisher)
	if of != nil && of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if of != nil && (strings.Contains(of.PkgPath(), "/rabbitmq/") || strings.Contains(of.PkgPath(), "watermill-amqp")) {
		return semconv.MessagingSystemRabbitMQ.Value.AsString()
	}
	return fmt.Sprintf("%T", publisher)
}

type tracedPublisher struct {
	message.Publisher
	traces *traces
}

// Publish implements message.Publisher.
func (p tracedPublisher) Publish(topic string, messages ...*message.Message) (err error) {
	copies := make([]*message.Message, len(messages))
	spans := make([]trace.Span, 0, len(messages))
	defer func() {
		for _, span := range spans {
			if err != nil && span.IsRecording() {
				span.RecordError(err)
				span.SetAttributes(semconv.ErrorTypeKey.String(panics.TypeOf(err)))
				span.SetStatus(codes.Error, err.Error())
			}
			span.End()
		}
	}()
	propagator := p.traces.propagators.current()
	for i, msg := range messages {
		if msg == nil {
			continue // the publisher decides what it does with nil
		}
		from := p.traces.originOf(msg.Context(), msg.Metadata, "")
		ctx, span := p.traces.tracer.Start(from.parent, "send "+topic, trace.WithSpanKind(trace.SpanKindProducer),
			trace.WithAttributes(
				semconv.MessagingOperationTypeSend, semconv.MessagingOperationName("send"),
				semconv.MessagingDestinationName(topic),
				semconv.MessagingSystemKey.String(p.traces.observed.System), semconv.MessagingMessageID(msg.UUID),
			))
		spans = append(spans, span)
		sent := msg.Copy()
		sent.SetContext(ctx)
		propagator.Inject(ctx, propagation.MapCarrier(sent.Metadata))
		copies[i] = sent
	}
	return p.Publisher.Publish(topic, copies...)
}
