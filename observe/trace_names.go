package observe

import (
	"strings"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// The attributes of spans that OpenTelemetry's messaging semantic conventions do not have.
const (
	keyHandler        = attribute.Key("watermill.retry.handler")
	keyFailuresBefore = attribute.Key("watermill.retry.failures_before")
	keyFailures       = attribute.Key("watermill.retry.failures")
	keySnoozes        = attribute.Key("watermill.retry.snoozes")
	keyOutcome        = attribute.Key("watermill.retry.outcome")
	keyDeadReason     = attribute.Key("watermill.retry.dead_reason")
	keyCause          = attribute.Key("watermill.retry.cause")
	keyRule           = attribute.Key("watermill.retry.rule")
	keyTier           = attribute.Key("watermill.retry.tier")
	keyDelay          = attribute.Key("watermill.retry.delay_ms")
	keyArrivedTier    = attribute.Key("watermill.retry.arrived_tier")
	keyLateness       = attribute.Key("watermill.retry.lateness_ms")
	keyDestination    = attribute.Key("watermill.retry.destination")
	keyRedriveRun     = attribute.Key("watermill.retry.redrive.run")
	keyRedriveBy      = attribute.Key("watermill.retry.redrive.by")
	keyRedriveNote    = attribute.Key("watermill.retry.redrive.note")
	keyLink           = attribute.Key("watermill.retry.link")
)

// maxHandlers is how many handlers have their options kept. Those of further ones are made for each message.
const maxHandlers = 10_000

type spanKey struct{ topic, handler string }

// handlerSpans is what all spans of one handler have in common.
type handlerSpans struct {
	name    string
	options []trace.SpanStartOption
}

func (t *traces) handlerOf(key spanKey) *handlerSpans {
	t.mu.RLock()
	found := t.handlers[key]
	t.mu.RUnlock()
	if found != nil {
		return found
	}
	made := t.newHandler(key)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.handlers) < maxHandlers {
		t.handlers[key] = made
	}
	return made
}

func (t *traces) newHandler(key spanKey) *handlerSpans {
	attributes := known(
		semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("process"),
		semconv.MessagingDestinationName(key.topic), keyHandler.String(key.handler),
		semconv.MessagingSystemKey.String(t.observed.System), semconv.MessagingConsumerGroupName(t.groupOf(key)))
	return &handlerSpans{
		name: "process " + key.topic,
		options: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(attributes...)},
	}
}

// groupOf returns the consumer group of a handler on RabbitMQ, where the queue of a group is "<topic>_<group>".
func (t *traces) groupOf(key spanKey) string {
	if t.observed.System != "rabbitmq" || t.observed.Health == nil {
		return ""
	}
	for _, s := range t.observed.Health().Subscriptions {
		group, found := strings.CutPrefix(s.Queue, key.topic+"_")
		if found && s.Name == key.handler && s.Topic == key.topic {
			return group
		}
	}
	return ""
}
