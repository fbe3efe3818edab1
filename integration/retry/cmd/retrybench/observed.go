package main

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/retry"
)

const observedName = "own subscriber, observed"

// readEvery is how often the metrics of a side are read. Prometheus reads every 15 to 60 seconds.
const readEvery = time.Second

var (
	withMetrics = observed(observedName+": metrics", nil)
	withTraces  = observed(observedName+", 1% of traces", func() retry.Observer {
		return observe.OpenTelemetry(nil, sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.TraceIDRatioBased(0.01))))
	})
)

// watched is a contest between the library and the library with observers.
func (b brokerBench) watched() contest {
	return contest{
		title:  fmt.Sprintf("storm of %d messages, observed; the metrics are read every %v", b.messages, readEvery),
		sides:  []side{ownSubscriber, withMetrics, withTraces},
		app:    func(side) *app { return newApp(b.messages, true, 0) },
		claims: []ratio{{"observe_storm", withMetrics, ownSubscriber, 0.95}, {"observe_storm_traces", withTraces, ownSubscriber, 0.9}},
	}
}

// observed is ownSubscriber with metrics in a registry that is read all the time.
func observed(name string, also func() retry.Observer) side {
	return wired(name, 1, options, func(c config.BuilderConfig) (adder, func(), error) {
		registry := prometheus.NewRegistry()
		observers := []retry.Observer{observe.Prometheus(registry)}
		if also != nil {
			observers = append(observers, also())
		}
		add, closeAll, err := connectWith(c, inFlight, observers...)
		if err != nil {
			return nil, nil, err
		}
		done := make(chan struct{})
		go func() {
			tick := time.NewTicker(readEvery)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					_, _ = registry.Gather()
				case <-done:
					return
				}
			}
		}()
		return add, func() { close(done); closeAll() }, nil
	})
}

// observedRows are the middleware with observers around the bare handler.
func observedRows(config middleware.TieredRetryConfig) ([]row, error) {
	var rows []row
	for _, o := range []struct {
		name     string
		observer retry.Observer
	}{
		{"observed: Prometheus", observe.Prometheus(prometheus.NewRegistry())},
		{"observed: OpenTelemetry", observe.OpenTelemetry(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())), nil)},
		{"observed: 1% of traces", observe.OpenTelemetry(nil, sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.TraceIDRatioBased(0.01))))},
	} {
		config.Observers = &middleware.Observers{}
		config.Observers.Attach(o.observer, retry.Observed{System: "bench", Health: func() retry.Health { return retry.Health{} }})
		tiered, err := middleware.NewTieredRetry(config, nil)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row{o.name, tiered.Middleware(succeed)})
	}
	return rows, nil
}
