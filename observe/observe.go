package observe

import (
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/tieredretry/watermill-retry/middleware"
)

// Prometheus returns an observer that registers the metrics of Metrics.
func Prometheus(registerer prometheus.Registerer, config ...Config) middleware.Observer { return nil }

// OpenTelemetry returns an observer with the metrics of Metrics, where the meter provider is not nil, and with a span for each attempt,
// where the tracer provider is not nil.
func OpenTelemetry(meters metric.MeterProvider, tracers trace.TracerProvider, config ...Config) middleware.Observer {
	return nil
}
