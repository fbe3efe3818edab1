package observe_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tieredretry/watermill-retry/backoff"

	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// exampleT replaces the t of a test, because an example has none.
type exampleT struct {
	testing.TB
	cleanups []func()
}

func (t *exampleT) Helper()                           {}
func (t *exampleT) Cleanup(fn func())                 { t.cleanups = append(t.cleanups, fn) }
func (t *exampleT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (t *exampleT) Errorf(format string, args ...any) { fmt.Printf(format, args...) }
func (t *exampleT) end() {
	for _, fn := range t.cleanups {
		fn()
	}
}

// charge is a handler that fails for the first two attempts.
func charge(msg *message.Message) error {
	if record, _ := retry.ReadRecord(msg.Metadata); record.Failures < 2 {
		return errors.New("no answer from the bank")
	}
	return nil
}

func ExamplePrometheus() {
	t := &exampleT{}
	defer t.end()

	// The app of a test. A Connection has the same methods.
	app := retrytest.New(t, backoff.Constant(time.Millisecond, 3))
	registry := prometheus.NewRegistry()
	app.Observe(observe.Prometheus(registry))
	app.AddConsumerHandler(app.Router, "billing", "orders", charge)
	app.Send("orders", message.NewMessage("order-1", nil)).Processed()

	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, family := range families {
		if family.GetName() == "watermill_retry_outcomes_total" {
			for _, one := range family.GetMetric() {
				for _, label := range one.GetLabel() {
					fmt.Printf("%s=%q ", label.GetName(), label.GetValue())
				}
				fmt.Println(one.GetCounter().GetValue())
			}
		}
	}
	// Output:
	// handler="billing" outcome="recovered" reason="" topic="orders" 1
	// handler="billing" outcome="retried" reason="" topic="orders" 2
}

// The metrics of a Connection on an HTTP address, with exemplars.
func ExamplePrometheus_scrape() {
	var rabbit retry.Connection // of Connect

	serve := func() {
		registry := prometheus.NewRegistry()
		rabbit.Observe(observe.Prometheus(registry))
		http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	}
	_ = serve
}

func ExampleOpenTelemetry() {
	t := &exampleT{}
	defer t.end()

	app := retrytest.New(t, backoff.Constant(time.Millisecond, 3))
	reader := sdkmetric.NewManualReader() // an app has a reader with an exporter
	app.Observe(observe.OpenTelemetry(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), nil))
	app.AddConsumerHandler(app.Router, "billing", "orders", charge)
	app.Send("orders", message.NewMessage("order-1", nil)).Processed()

	var collected metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &collected); err != nil {
		panic(err)
	}
	for _, one := range collected.ScopeMetrics[0].Metrics {
		if outcomes, is := one.Data.(metricdata.Sum[int64]); is && strings.HasSuffix(one.Name, ".outcomes") {
			for _, point := range outcomes.DataPoints {
				fmt.Println(one.Name, point.Attributes.Encoded(attribute.DefaultEncoder()), point.Value)
			}
		}
	}
	// Unordered output:
	// watermill.retry.outcomes handler=billing,outcome=retried,reason=,topic=orders 2
	// watermill.retry.outcomes handler=billing,outcome=recovered,reason=,topic=orders 1
}

// The providers that the app has set, with otel.SetMeterProvider and otel.SetTracerProvider.
func ExampleOpenTelemetry_providers() {
	var rabbit retry.Connection // of Connect

	observed := func() {
		rabbit.Observe(observe.OpenTelemetry(otel.GetMeterProvider(), otel.GetTracerProvider()))
	}
	_ = observed
}

func ExampleConfig() {
	var rabbit retry.Connection // of Connect

	observed := func() {
		rabbit.Observe(observe.Prometheus(prometheus.DefaultRegisterer, observe.Config{
			MaxSeries:      1_000,
			WaitingEvery:   5 * time.Minute, // less than 0: what waits is not asked for
			WaitingTimeout: 5 * time.Second,
		}))
	}
	_ = observed

	fmt.Println(observe.Config{MaxSeries: -1}.Validate())
	// Output:
	// MaxSeries is -1: it must be 0 (the default, 10,000) or more
}

func ExampleMetrics() {
	for _, m := range observe.Metrics()[:3] {
		fmt.Println(m.Prometheus, m.Kind, m.Labels)
	}
	// Output:
	// watermill_retry_outcomes_total counter [topic handler outcome reason]
	// watermill_retry_handler_duration_seconds histogram [topic handler]
	// watermill_retry_failures_before_success histogram [topic handler]
}
