package observe_test

import (
	"slices"
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

	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/observe"
)

// TestTraceOnRabbitMQ: the order, two retries and the dead letter are one trace, which AMQP headers carry. Package
// observe tests the parents and links of its spans, a redrive and what a handler produces.
func TestTraceOnRabbitMQ(t *testing.T) {
	testapp.OnModel(t, func(t *testing.T, b *model.Broker, c config.Config) {
		exported := tracetest.NewInMemoryExporter()
		tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exported))
		app := testapp.Connect(t, c)
		app.Observe(observe.OpenTelemetry(nil, tracers))
		app.Handle("orders", 1, func(*message.Message) error {
			time.Sleep(time.Second) // an attempt begins before its wait
			return errFeed
		})
		app.Run()
		order := message.NewMessage("order-1", nil)
		require.NoError(t, observe.Publisher(app.Publisher(), tracers).Publish("orders", order))
		time.Sleep(time.Minute)

		spans := exported.GetSpans()
		slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
		var names []string
		for _, s := range spans {
			names = append(names, s.Name)
			assert.Equal(t, spans[0].SpanContext.TraceID(), s.SpanContext.TraceID(), s.Name)
			if s.Name == "send orders" || s.Name == "process orders" {
				assert.Contains(t, s.Attributes, attribute.String("messaging.system", "rabbitmq"), s.Name)
			}
		}
		assert.Equal(t, []string{"send orders", "process orders", "wait 100ms", "process orders", "wait 300ms", "process orders",
			"dead-letter orders"}, names)
		last := spans[5].SpanContext
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(t.Context(), last), carrier)
		letters := b.Messages("orders.dead")
		require.Len(t, letters, 1)
		assert.Equal(t, carrier["traceparent"], letters[0].Headers[recordkey.Traceparent], "it leads to the last attempt")
		lines := app.Log.Lines("Message dead-lettered")
		require.Len(t, lines, 1)
		assert.Contains(t, lines[0], last.SpanID().String(), "the lines of the middleware have the trace")
	})
}
