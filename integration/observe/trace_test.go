package observe_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

const soonTraced = 2 * time.Minute // much longer than any of it takes

// life is a bank that is down, and the spans of the order's life.
type life struct {
	t        *testing.T
	spans    *tracetest.InMemoryExporter
	tracers  *sdktrace.TracerProvider
	down     atomic.Bool
	produced chan *message.Message // what the handler has produced
}

func newLife(t *testing.T) *life {
	l := &life{t: t, spans: tracetest.NewInMemoryExporter(), produced: make(chan *message.Message, 1)}
	l.tracers = sdktrace.NewTracerProvider(sdktrace.WithSyncer(l.spans))
	l.down.Store(true)
	return l
}

func (l *life) observer() retry.Observer { return observe.OpenTelemetry(nil, l.tracers) }

func (l *life) handle(msg *message.Message) ([]*message.Message, error) {
	if l.down.Load() {
		return nil, errors.New("the bank is down")
	}
	return []*message.Message{message.NewMessage("invoice-1", nil)}, nil
}

// named returns the spans with a name that have ended, by their start.
func (l *life) named(name string) (found tracetest.SpanStubs) {
	for _, s := range l.spans.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	slices.SortStableFunc(found, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	return found
}

// wait waits until so many spans with a name have ended.
func (l *life) wait(n int, name string) tracetest.SpanStubs {
	l.t.Helper()
	broker.Eventually(l.t, soonTraced, func() bool { return len(l.named(name)) >= n }, "%d spans %q", n, name)
	require.Len(l.t, l.named(name), n, name)
	return l.named(name)
}

func traceparentOf(s trace.SpanContext) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), s), carrier)
	return carrier["traceparent"]
}

// links returns what a span is linked to, by the kind of the link.
func links(s tracetest.SpanStub) map[string]trace.SpanID {
	all := map[string]trace.SpanID{}
	for _, link := range s.Links {
		for _, a := range link.Attributes {
			if a.Key == "watermill.retry.link" {
				all[a.Value.AsString()] = link.SpanContext.SpanID()
			}
		}
	}
	return all
}

func attributeOf(s tracetest.SpanStub, key attribute.Key) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.String()
		}
	}
	return ""
}

// died asserts the spans of three attempts. It returns the last one.
func (l *life) died(topic string, record retry.Record) tracetest.SpanStub {
	l.t.Helper()
	l.wait(1, "dead-letter "+topic)
	attempts := l.wait(3, "process "+topic)
	assert.Equal(l.t, traceparentOf(attempts[2].SpanContext), record.Traceparent, "the dead letter leads to the last attempt")
	assert.Equal(l.t, "exhausted", attributeOf(attempts[2], "watermill.retry.dead_reason"))
	assert.Equal(l.t, attempts[2].SpanContext.SpanID(), l.named("dead-letter " + topic)[0].Parent.SpanID())
	return attempts[2]
}

// recovered asserts the whole life, after the redrive.
func (l *life) recovered(topic, system, run string, waits ...string) {
	l.t.Helper()
	attempts := l.wait(4, "process "+topic)
	redrive := l.wait(1, "redrive")[0]
	order := l.wait(1, "send "+topic)[0]
	assert.Equal(l.t, system, attributeOf(order, "messaging.system"))
	for i, s := range attempts {
		assert.Equal(l.t, order.SpanContext.SpanID(), s.Parent.SpanID(), "the parent of attempt %d", i+1)
		want := map[string]trace.SpanID{"producer": order.SpanContext.SpanID()}
		if i > 0 {
			want["previous attempt"] = attempts[i-1].SpanContext.SpanID()
		}
		assert.Equal(l.t, want, links(s), "attempt %d", i+1)
		assert.Equal(l.t, system, attributeOf(s, "messaging.system"))
	}
	assert.Equal(l.t, "processed", attributeOf(attempts[3], "watermill.retry.outcome"), "a redriven message has not failed")
	assert.Equal(l.t, run, attributeOf(redrive, "watermill.retry.redrive.by"))
	assert.Equal(l.t, map[string]trace.SpanID{"previous attempt": attempts[2].SpanContext.SpanID()}, links(redrive))
	for _, name := range waits {
		wait := l.wait(1, name)[0]
		assert.False(l.t, wait.EndTime.Before(wait.StartTime), name)
		assert.Equal(l.t, order.SpanContext.SpanID(), wait.Parent.SpanID(), name)
	}
	for _, s := range l.spans.GetSpans() {
		assert.Equal(l.t, order.SpanContext.TraceID(), s.SpanContext.TraceID(), s.Name)
	}
	invoice := broker.Receive(l.t, l.produced, "the produced message")
	assert.Equal(l.t, traceparentOf(attempts[3].SpanContext), invoice.Metadata["traceparent"], "what the handler produces belongs to its attempt")
}

// TestTraceOnRabbitMQ: the order, two retries, the dead letter, the redrive and the success are one trace.
func TestTraceOnRabbitMQ(t *testing.T) {
	t.Parallel()
	name := broker.Name(t, "trace")
	broker.Clean(t, name)
	log := &testapp.Log{}
	rabbit, err := config.Connect(config.Config{
		AMQP: amqp.NewDurableQueueConfig(broker.URL(t)), Policy: retry.Policy{Schedule: backoff.Schedule{100 * time.Millisecond, 300 * time.Millisecond}}, Settings: rabbitmq.Settings{Prefix: name},
	}, log)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rabbit.Close()) })
	l := newLife(t)
	rabbit.Observe(l.observer())
	router := message.NewDefaultRouter(log)
	orders, invoices := "orders_"+name, "invoices_"+name
	rabbit.AddHandler(router, "billing", orders, invoices, l.handle)
	rabbit.AddConsumerHandler(router, "post", invoices, func(msg *message.Message) error { l.produced <- msg.Copy(); return nil })
	t.Cleanup(testapp.Start(t, router))
	require.NoError(t, observe.Publisher(rabbit.Publisher(), l.tracers).Publish(orders, message.NewMessage("order-1", nil)))
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Prefix: name}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	l.wait(1, "dead-letter "+orders)
	var dead []*letters.Letter
	for letter, err := range store.Browse(t.Context(), deadletter.QueueOf(orders), letters.Filter{}) {
		require.NoError(t, err)
		dead = append(dead, letter)
	}
	require.Len(t, dead, 1)
	l.died(orders, dead[0].Record)
	l.down.Store(false)
	summary, err := store.Redrive(t.Context(), deadletter.QueueOf(orders), letters.Redrive{By: "ann@desk"})
	require.NoError(t, err)
	require.Equal(t, 1, summary.Done)
	l.wait(1, "process "+invoices)
	l.recovered(orders, "rabbitmq", "ann@desk", "wait 100ms", "wait 300ms")
	lines := log.Lines("Message dead-lettered")
	require.Len(t, lines, 1)
	assert.Contains(t, lines[0], l.named("process " + orders)[2].SpanContext.SpanID().String(), "the lines of the middleware have the trace")
}
