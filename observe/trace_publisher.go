package observe

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/tieredretry/watermill-retry/internal/backend"
)

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
	t := &traces{tracer: newTracer(tracers), propagators: &propagators{},
		observed: backend.Observed{System: systemOf(publisher)}}
	if len(config) > 0 {
		t.propagators.configured = config[0].Propagator
	}
	return tracedPublisher{publisher, t}
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
func (p tracedPublisher) Publish(topic string, messages ...*message.Message) error {
	copies := make([]*message.Message, len(messages))
	spans := make([]trace.Span, 0, len(messages))
	defer func() {
		for _, span := range spans {
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
	err := p.Publisher.Publish(topic, copies...)
	if err != nil {
		for _, span := range spans {
			if span.IsRecording() {
				span.RecordError(err)
				span.SetAttributes(semconv.ErrorTypeKey.String(typeOf(err)))
				span.SetStatus(codes.Error, err.Error())
			}
		}
	}
	return err
}
