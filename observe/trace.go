package observe

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// traces makes the spans of one Connection. It is the key of its attempts in their contexts: each observer finds its
// own.
type traces struct {
	backend.NopObserver
	tracer      trace.Tracer
	propagators *propagators
	observed    backend.Observed

	mu       sync.RWMutex
	handlers map[spanKey]*handlerSpans
}

// attempt is one call of a handler. It is the context that the handler gets.
type attempt struct {
	context.Context
	of       *traces
	span     trace.Span
	producer trace.SpanContext // the span in the message's metadata, as it arrived
	metadata message.Metadata  // the metadata of the message, as it arrived
}

// Value implements context.Context.
func (a *attempt) Value(key any) any {
	if key == any(a.of) {
		return a
	}
	return a.Context.Value(key)
}

// traceObserver returns the observer that makes the spans of a Connection.
func traceObserver(tracers trace.TracerProvider, config Config, observed backend.Observed) *traces {
	return &traces{
		tracer:      tracers.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
		propagators: &propagators{configured: config.Propagator}, observed: observed,
		handlers: map[spanKey]*handlerSpans{},
	}
}

// attemptOf returns the attempt of a context, or nil.
func (t *traces) attemptOf(ctx context.Context) *attempt {
	a, _ := ctx.Value(t).(*attempt)
	return a
}

// Begin starts the span of an attempt. Its parent is a span that the message's context has, else the producer's, else
// the attempt before.
func (t *traces) Begin(arrival retry.Event) context.Context {
	from := t.originOf(arrival.Context, arrival.Metadata, previousText(&arrival))
	of := t.handlerOf(spanKey{arrival.Topic, arrival.Handler})
	ctx, span := t.tracer.Start(from.parent, of.name, of.options...)
	a := &attempt{Context: ctx, of: t, span: span, producer: from.producer, metadata: arrival.Metadata}
	if span.IsRecording() {
		t.describe(a, &from, &arrival)
	}
	return a
}

// describe adds what only a span that is sampled needs.
func (t *traces) describe(a *attempt, from *origin, arrival *retry.Event) {
	record := &arrival.Record
	attributes := known(keyFailuresBefore.Int(record.Failures), semconv.MessagingMessageID(arrival.MessageUUID))
	if arrival.Arrived > 0 {
		attributes = append(attributes, keyArrivedTier.String(arrival.Arrived.String()),
			keyLateness.Int64(arrival.Lateness.Milliseconds()))
	}
	a.span.SetAttributes(attributes...)
	link(a.span, from.producer, "producer")
	link(a.span, from.previousAttempt(), "previous attempt")
	now := time.Now()
	if redrive, redriven := lastRedrive(arrival); redriven {
		at := notAfter(redrive.At, now)
		t.beside(from, "redrive", at, at, known(keyFailures.Int(redrive.Failures), keyRedriveRun.String(redrive.Run),
			keyRedriveBy.String(redrive.By), keyRedriveNote.String(redrive.Note),
			keyDeadReason.String(string(redrive.DeadReason))))
	}
	if !record.LastFailedAt.IsZero() { // by the clocks of two hosts
		name := "wait"
		attributes := []attribute.KeyValue{keyHandler.String(arrival.Handler), keyFailures.Int(record.Failures)}
		if arrival.Arrived > 0 {
			name += " " + arrival.Arrived.String()
			attributes = append(attributes, keyTier.String(arrival.Arrived.String()))
		}
		t.beside(from, name, notAfter(record.LastFailedAt, now), now, attributes)
	}
}

// link links a span to another one. The kind says which one it is.
func link(span trace.Span, to trace.SpanContext, kind string) {
	if to.IsValid() {
		span.AddLink(trace.Link{SpanContext: to, Attributes: []attribute.KeyValue{keyLink.String(kind)}})
	}
}

// beside makes the span of what was between the attempt before and this one: the wait, or a redrive.
func (t *traces) beside(from *origin, name string, began, ended time.Time, attributes []attribute.KeyValue) {
	_, span := t.tracer.Start(from.beside, name, trace.WithTimestamp(began), trace.WithAttributes(attributes...))
	link(span, from.previousAttempt(), "previous attempt")
	span.End(trace.WithTimestamp(ended))
}

// notAfter returns the time, or now where the time is not known or is that of a clock that is ahead.
func notAfter(at, now time.Time) time.Time {
	if at.IsZero() || at.After(now) {
		return now
	}
	return at
}

// lastRedrive returns the redrive that has brought a message whose handler is called for the first time since then.
func lastRedrive(arrival *retry.Event) (last letters.PastRedrive, redriven bool) {
	if !arrival.Record.LastFailedAt.IsZero() {
		return last, false
	}
	history, _ := letters.ReadRedriven(arrival.Metadata)
	if n := len(history.Redrives); n > 0 {
		return history.Redrives[n-1], true
	}
	return last, false
}

// previousText is the trace of the attempt before, as the failure record has it. A message that was redriven has it
// without a record.
func previousText(arrival *retry.Event) string {
	if text := arrival.Record.Traceparent; text != "" {
		return text
	}
	if _, redriven := arrival.Metadata[letters.RedrivenKey]; redriven {
		record, _ := retry.ReadRecord(arrival.Metadata)
		return record.Traceparent
	}
	return ""
}

// Event ends the span of an attempt, unless the message is held.
func (t *traces) Event(e retry.Event) {
	a := t.attemptOf(e.Context)
	switch {
	case a == nil:
		if e.Outcome == retry.DeadLettered {
			t.deadOnArrival(&e)
		}
	case e.Outcome == retry.Held:
		if a.span.IsRecording() {
			a.span.AddEvent("held", trace.WithAttributes(keyDestination.String(e.Destination),
				semconv.ErrorTypeKey.String(panics.TypeOf(e.Err))))
		}
	default:
		defer a.span.End()
		if a.span.IsRecording() {
			t.end(a, &e)
		}
	}
}

// end describes the outcome of an attempt.
func (t *traces) end(a *attempt, e *retry.Event) {
	attributes := known(keyOutcome.String(string(e.Outcome)), keyFailures.Int(e.Record.Failures), keyRule.String(e.Rule),
		keyDeadReason.String(either(e.Outcome.GivenUp(), string(e.Record.DeadReason), "")))
	if e.Tier > 0 {
		attributes = append(attributes, keyTier.String(e.Tier.String()), keyDelay.Int64(e.Delay.Milliseconds()))
	}
	if e.Record.Snoozes > 0 {
		attributes = append(attributes, keySnoozes.Int(e.Record.Snoozes))
	}
	if e.Err == nil {
		a.span.SetAttributes(attributes...)
		return
	}
	failure := failureOf(e)
	a.span.SetAttributes(append(attributes, semconv.ErrorTypeKey.String(failure.errorType))...)
	failure.report(a.span)
	if e.Outcome == retry.DeadLettered {
		t.deadLetter(a, e).End() // it has no duration
	}
}

// deadLetter begins the span of the copy that is now a dead letter.
func (t *traces) deadLetter(ctx context.Context, e *retry.Event) trace.Span {
	attributes := known(semconv.MessagingOperationTypeSend, semconv.MessagingOperationName("dead-letter"),
		semconv.MessagingDestinationName(e.Destination), keyHandler.String(e.Handler),
		keyFailures.Int(e.Record.Failures), keyDeadReason.String(string(e.Record.DeadReason)),
		keyCause.String((&letters.Letter{Record: e.Record}).Cause().ID()),
		semconv.MessagingSystemKey.String(t.observed.System), semconv.MessagingMessageID(e.MessageUUID))
	_, span := t.tracer.Start(ctx, "dead-letter "+e.Topic, trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(attributes...))
	return span
}

// known leaves out the attributes that are empty texts.
func known(all ...attribute.KeyValue) []attribute.KeyValue {
	return slices.DeleteFunc(all, func(a attribute.KeyValue) bool {
		return a.Value.Type() == attribute.STRING && a.Value.AsString() == ""
	})
}

// deadOnArrival makes the span of a message that became a dead letter without a call of its handler.
func (t *traces) deadOnArrival(e *retry.Event) {
	from := t.originOf(e.Context, e.Metadata, e.Record.Traceparent)
	span := t.deadLetter(from.parent, e)
	defer span.End()
	if span.IsRecording() {
		link(span, from.producer, "producer")
		link(span, from.previousAttempt(), "previous attempt")
		if e.Err != nil {
			failureOf(e).report(span)
		}
	}
}

// Produced gives the context of the attempt to the messages that have none of their own.
func (t *traces) Produced(ctx context.Context, produced []*message.Message) {
	a := t.attemptOf(ctx)
	if a == nil || !a.span.SpanContext().IsValid() {
		return
	}
	propagator := t.propagators.current()
	for _, msg := range produced {
		if msg == nil {
			continue
		}
		extracted := propagator.Extract(context.Background(), propagation.MapCarrier(msg.Metadata))
		has := trace.SpanContextFromContext(extracted)
		if has.IsValid() && !(has.TraceID() == a.producer.TraceID() && has.SpanID() == a.producer.SpanID()) {
			continue
		}
		of := ctx
		if trace.SpanContextFromContext(msg.Context()).IsValid() { // a span of the handler's own
			of = msg.Context()
		}
		msg.Metadata = injected(propagator, of, msg.Metadata, a.metadata)
	}
}

// Traceparent is what the failure record keeps of an attempt.
func (t *traces) Traceparent(ctx context.Context) string {
	if a := t.attemptOf(ctx); a != nil {
		return traceparentOf(a.span.SpanContext())
	}
	return ""
}

// LogFields are those of the attempt, else those of the span that the message's context has.
func (t *traces) LogFields(ctx context.Context) watermill.LogFields {
	span := trace.SpanContextFromContext(ctx)
	if a := t.attemptOf(ctx); a != nil {
		span = a.span.SpanContext()
	}
	if !span.IsValid() {
		return nil
	}
	return watermill.LogFields{"trace_id": span.TraceID().String(), "span_id": span.SpanID().String()}
}

// failure is what a span has of an error: never its own text, which the record has as far as the app allows it.
type failure struct{ errorType, message, description string }

// failureOf reads the failure of an event. The record of a message that is given back, or was settled by its handler,
// is not that of this failure.
func failureOf(e *retry.Event) failure {
	if !e.Outcome.Waits() && !e.Outcome.GivenUp() && e.Outcome != retry.Discarded {
		name := panics.TypeOf(e.Err)
		return failure{errorType: name, description: string(e.Outcome) + ": " + name}
	}
	of, reason := cmp.Or(e.Record.ErrorType, panics.TypeOf(e.Err)), e.Record.Reason
	return failure{errorType: of, message: reason, description: cmp.Or(reason, of)}
}

// report writes the failure into a span.
func (f failure) report(span trace.Span) {
	attributes := known(semconv.ExceptionType(f.errorType), semconv.ExceptionMessage(f.message))
	span.AddEvent(semconv.ExceptionEventName, trace.WithAttributes(attributes...))
	span.SetStatus(codes.Error, f.description)
}
