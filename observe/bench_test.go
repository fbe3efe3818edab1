package observe_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/retry"
)

// observers are those that are measured, on a backend.
var observers = []struct {
	name, system string
	observer     func() retry.Observer // nil: none
}{
	{"without", "rabbitmq", nil},
	{"prometheus", "rabbitmq", func() retry.Observer { return observe.Prometheus(prometheus.NewRegistry()) }},
	{"prometheus-other-backends", "nats", func() retry.Observer { return observe.Prometheus(prometheus.NewRegistry()) }},
	{"opentelemetry", "rabbitmq", func() retry.Observer {
		return observe.OpenTelemetry(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())), nil)
	}},
	{"traces", "rabbitmq", func() retry.Observer { return observe.OpenTelemetry(nil, sdktrace.NewTracerProvider()) }},
}

// success returns a delivery of a message whose handler succeeds.
func success(t testing.TB, system string, observer func() retry.Observer) func() {
	a := newApp(t)
	if a.system = system; observer != nil {
		a.observe(observer())
	}
	h := a.retry.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	ctx := from(topic, handler)
	msg := newMessage(ctx)
	return func() {
		_, _ = h(msg)
		msg.SetContext(ctx)
	}
}

// BenchmarkSuccess measures what an observer costs a handler that succeeds.
func BenchmarkSuccess(b *testing.B) {
	for _, row := range observers {
		b.Run(row.name, func(b *testing.B) {
			delivery := success(b, row.system, row.observer)
			b.ReportAllocs()
			for b.Loop() {
				delivery()
			}
		})
	}
}

// TestASuccessCostsFewAllocations: metrics cost at most 2 more than without an observer.
func TestASuccessCostsFewAllocations(t *testing.T) {
	allocations := map[string]float64{}
	for _, row := range observers {
		allocations[row.name] = testing.AllocsPerRun(1000, success(t, row.system, row.observer))
	}
	for _, name := range []string{"prometheus", "prometheus-other-backends", "opentelemetry"} {
		assert.LessOrEqual(t, allocations[name], allocations["without"]+2, name)
	}
}
