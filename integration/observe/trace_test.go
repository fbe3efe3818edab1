package observe_test

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// TestTraceOnRabbitMQ: the order, two retries, the dead letter, the redrive and the success are one trace. Package
// observe tests the parents and links of its spans.
func TestTraceOnRabbitMQ(t *testing.T) {
	t.Parallel()
	spans, down, produced := tracetest.NewInMemoryExporter(), atomic.Bool{}, make(chan *message.Message, 1)
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	// wait waits until so many spans with a name have ended, and returns them by their start.
	wait := func(n int, name string) (found tracetest.SpanStubs) {
		t.Helper()
		broker.Eventually(t, feedSoon, func() bool {
			found = slices.DeleteFunc(spans.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name != name })
			return len(found) >= n
		}, "%d spans %q", n, name)
		require.Len(t, found, n, name)
		slices.SortStableFunc(found, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
		return found
	}
	traceparent := func(s tracetest.SpanStub) string {
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(t.Context(), s.SpanContext), carrier)
		return carrier["traceparent"]
	}
	app := testapp.New(t)
	app.Observe(observe.OpenTelemetry(nil, tracers))
	orders, invoices := app.Queue("orders"), app.Queue("invoices")
	down.Store(true)
	app.AddHandler(app.Router, "billing", orders, invoices, func(*message.Message) ([]*message.Message, error) {
		if down.Load() {
			return nil, errFeed
		}
		return []*message.Message{message.NewMessage("invoice-1", nil)}, nil
	})
	app.AddConsumerHandler(app.Router, "post", invoices, func(msg *message.Message) error { produced <- msg.Copy(); return nil })
	app.Run()
	require.NoError(t, observe.Publisher(app.Publisher(), tracers).Publish(orders, message.NewMessage("order-1", nil)))
	wait(1, "dead-letter "+orders)
	last := wait(3, "process "+orders)[2]
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Prefix: app.Name}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	dead := 0
	for letter, err := range store.Browse(t.Context(), deadletter.QueueOf(orders), letters.Filter{}) {
		require.NoError(t, err)
		assert.Equal(t, traceparent(last), letter.Record.Traceparent, "the dead letter leads to the last attempt")
		dead++
	}
	require.Equal(t, 1, dead)
	down.Store(false)
	_, err = store.Redrive(t.Context(), deadletter.QueueOf(orders), letters.Redrive{By: "ann@desk"})
	require.NoError(t, err)
	wait(1, "process "+invoices)

	order, redrive, attempts := wait(1, "send "+orders)[0], wait(1, "redrive")[0], wait(4, "process "+orders)
	wait(1, "wait 100ms")
	wait(1, "wait 300ms")
	for _, s := range spans.GetSpans() {
		assert.Equal(t, order.SpanContext.TraceID(), s.SpanContext.TraceID(), s.Name)
	}
	for _, s := range append(attempts, order) {
		assert.Contains(t, s.Attributes, attribute.String("messaging.system", "rabbitmq"), s.Name)
	}
	assert.Contains(t, attempts[3].Attributes, attribute.String("watermill.retry.outcome", "processed"), "it has not failed")
	assert.Contains(t, redrive.Attributes, attribute.String("watermill.retry.redrive.by", "ann@desk"))
	require.Len(t, redrive.Links, 1)
	assert.Equal(t, last.SpanContext.SpanID(), redrive.Links[0].SpanContext.SpanID(), "the attempt before the redrive")
	invoice := broker.Receive(t, produced, "the produced message")
	assert.Equal(t, traceparent(attempts[3]), invoice.Metadata["traceparent"], "what the handler produces belongs to its attempt")
	lines := app.Log.Lines("Message dead-lettered")
	require.Len(t, lines, 1)
	assert.Contains(t, lines[0], last.SpanContext.SpanID().String(), "the lines of the middleware have the trace")
}
