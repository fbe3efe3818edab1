// Package observe makes a Connection of watermill-retry visible: metrics for Prometheus or OpenTelemetry, and traces.
//
//	rabbit.Observe(observe.Prometheus(prometheus.DefaultRegisterer))
//	rabbit.Observe(observe.OpenTelemetry(otel.GetMeterProvider(), otel.GetTracerProvider()))
//
// It is a module of its own, so that apps without it do not get its dependencies. It works with every Connection:
// that of RabbitMQ, of package relay, and of package retrytest.
//
// No label has a message id or the text of an error. What an observer does cannot change the outcome of a message:
// its errors are logged, each once.
package observe

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/otlptranslator"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/retry"
)

// scope is the instrumentation scope of the metrics and the spans.
const scope = "github.com/tieredretry/watermill-retry/observe"

// Prometheus returns an observer that registers the metrics of Metrics, when it is attached to its first Connection.
// A registry takes one observer: attach it to all Connections of the app. A second one gets an error, which the
// Connection logs. At most one Config can be given.
//
// A counter or histogram has the trace id of a message as an exemplar, where the context of the message has a sampled
// span: promhttp shows exemplars with EnableOpenMetrics.
func Prometheus(registerer prometheus.Registerer, config ...Config) retry.Observer {
	return newObserver(&observer{prometheus: true, registerer: registerer}, config)
}

// OpenTelemetry returns an observer with the metrics of Metrics, where the meter provider is not nil, and with a span
// for each attempt, where the tracer provider is not nil. A meter provider takes one observer: attach it to all
// Connections of the app. At most one Config can be given.
func OpenTelemetry(meters metric.MeterProvider, tracers trace.TracerProvider, config ...Config) retry.Observer {
	return newObserver(&observer{meters: meters, tracers: tracers}, config)
}

type observer struct {
	backend.NopObserver
	config     Config
	err        error // what is wrong with the configuration
	prometheus bool  // the metrics go to the registerer, else to meters
	registerer prometheus.Registerer
	meters     metric.MeterProvider
	tracers    trace.TracerProvider

	mu      sync.Mutex
	metrics *metrics // nil until the first Connection, and where nothing is measured
	failed  error    // why there are none: what has been registered stays
}

func newObserver(o *observer, given []Config) *observer {
	if len(given) > 1 {
		o.err = fmt.Errorf("%d Configs were given: give at most one, with all fields", len(given))
	}
	for _, config := range given {
		o.config, o.err = config, errors.Join(o.err, config.Validate())
	}
	o.config = o.config.withDefaults()
	return o
}

// Attach implements backend.Observer.
func (o *observer) Attach(observed backend.Observed) (backend.Observer, error) {
	if o.err != nil {
		return nil, faults.Of("invalid observe.Config", o.err)
	}
	metrics, err := o.measure()
	if err != nil {
		return nil, err
	}
	var traces backend.Observer = backend.NopObserver{}
	if o.tracers != nil {
		traces = traceObserver(o.tracers, o.config, observed)
	}
	if metrics == nil {
		return traces, nil
	}
	return metrics.attach(observed, traces), nil
}

// measure returns the metrics. The first call makes them.
func (o *observer) measure() (*metrics, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.metrics != nil || o.failed != nil {
		return o.metrics, o.failed
	}
	meters, err := o.meters, error(nil)
	switch {
	case o.prometheus:
		meters, err = register(o.registerer)
	case o.meters == nil && o.tracers == nil:
		err = errors.New("the meter provider and the tracer provider are nil: give at least one, such as " +
			"otel.GetMeterProvider()")
	}
	if err != nil || meters == nil { // without an error, nothing is measured
		return nil, err
	}
	o.metrics, o.failed = newMetrics(meters.Meter(scope), o.config)
	return o.metrics, o.failed
}

// register returns a meter provider whose metrics a Prometheus registry has.
func register(registerer prometheus.Registerer) (metric.MeterProvider, error) {
	if registerer == nil {
		return nil, errors.New("the registerer is nil: give a registry, such as prometheus.DefaultRegisterer")
	}
	if err := registerer.Register(marker{}); err != nil {
		return nil, fmt.Errorf("the registry does not take the metrics: where another observer has it, attach "+
			"that one to all Connections: %w", err)
	}
	reader, err := exporter.New(exporter.WithRegisterer(registerer), exporter.WithoutScopeInfo(),
		exporter.WithoutTargetInfo(),
		exporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	if err != nil {
		registerer.Unregister(marker{})
		return nil, fmt.Errorf("the registry does not take the metrics: %w", err)
	}
	// Config.MaxSeries is the bound: the SDK's own makes a series with other labels, which Prometheus refuses.
	return sdk.NewMeterProvider(sdk.WithReader(reader), sdk.WithResource(resource.Empty()),
		sdk.WithCardinalityLimit(0)), nil
}

// A marker makes a registry refuse a second observer. The exporter alone would be accepted, and each scrape would
// fail.
type marker struct{}

var markerDesc = prometheus.NewDesc("watermill_retry_observer", "Marks the registry of package observe.", nil, nil)

func (marker) Describe(descs chan<- *prometheus.Desc) { descs <- markerDesc }

func (marker) Collect(chan<- prometheus.Metric) {}

// Config configures Prometheus and OpenTelemetry. The zero value is ready for use.
type Config struct {
	// MaxSeries is how many combinations of labels each metric has at most. Further topics, handlers, reasons, queues
	// and tiers are counted with the value "other", in a few more series. With OpenTelemetry the SDK has a bound of
	// its own: 2,000, where the app has not set another one. From 1. The default is 10,000.
	MaxSeries int

	// WaitingEvery is how old the figures of what waits may be. They are asked for when the metrics are read, in the
	// background: a read gets those of the last look. Where a look takes long, the next one begins only after 20
	// times as long, so less than 5% of the time is spent on looks. Less than 0: nothing is asked for. The default is
	// 30 seconds.
	WaitingEvery time.Duration

	// WaitingTimeout is the deadline of a look. The default is 10 seconds.
	WaitingTimeout time.Duration

	// Propagator reads the producer's context from the metadata of a message, and writes that of an attempt into the
	// messages that its handler produces. The default is the one that the app has set with otel.SetTextMapPropagator,
	// or W3C Trace Context with Baggage where it has set none.
	Propagator propagation.TextMapPropagator
}

// Validate reports all faults in one error. A zero field that has a default is valid.
func (c Config) Validate() error {
	return errors.Join(
		faults.If(c.MaxSeries < 0, "MaxSeries is %d: it must be 0 (the default, 10,000) or more", c.MaxSeries),
		faults.If(c.WaitingTimeout < 0, "WaitingTimeout is %v: it must be 0 (the default, 10s) or more", c.WaitingTimeout),
	)
}

func (c Config) withDefaults() Config {
	c.MaxSeries = cmp.Or(c.MaxSeries, 10_000)
	c.WaitingEvery = cmp.Or(c.WaitingEvery, 30*time.Second)
	c.WaitingTimeout = cmp.Or(c.WaitingTimeout, 10*time.Second)
	return c
}
