package observe

import (
	"context"
	"fmt"
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

	"github.com/tieredretry/watermill-retry/internal/backend"
)

// recorder keeps the spans of a tracer provider. A span that never ends is a fault of the test that made it.
type recorder struct {
	*sdktrace.TracerProvider
	t        testing.TB
	exported *tracetest.InMemoryExporter
	open     atomic.Int64
}

func newRecorder(t testing.TB, options ...sdktrace.TracerProviderOption) *recorder {
	r := &recorder{t: t, exported: tracetest.NewInMemoryExporter()}
	r.TracerProvider = sdktrace.NewTracerProvider(append([]sdktrace.TracerProviderOption{
		sdktrace.WithSyncer(r.exported), sdktrace.WithSpanProcessor((*openSpans)(&r.open)),
	}, options...)...)
	t.Cleanup(func() { assert.Zero(t, r.open.Load(), "spans that never ended") })
	return r
}

type openSpans atomic.Int64

func (o *openSpans) OnStart(context.Context, sdktrace.ReadWriteSpan) { (*atomic.Int64)(o).Add(1) }
func (o *openSpans) OnEnd(sdktrace.ReadOnlySpan)                     { (*atomic.Int64)(o).Add(-1) }
func (o *openSpans) Shutdown(context.Context) error                  { return nil }
func (o *openSpans) ForceFlush(context.Context) error                { return nil }

// spans returns those that have ended, in the order in which they began. Of spans that began at the same time the first that ended is first.
func (r *recorder) spans() tracetest.SpanStubs {
	all := r.exported.GetSpans()
	slices.SortStableFunc(all, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	return all
}

// named returns the spans with a name.
func (r *recorder) named(name string) (found tracetest.SpanStubs) {
	for _, s := range r.spans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

func (r *recorder) only(name string) tracetest.SpanStub {
	r.t.Helper()
	found := r.named(name)
	require.Len(r.t, found, 1, "%s among %v", name, r.names())
	return found[0]
}

func (r *recorder) names() (names []string) {
	for _, s := range r.spans() {
		names = append(names, s.Name)
	}
	return names
}

// start starts the span of a producer.
func (r *recorder) start(name string) (context.Context, trace.Span) {
	return r.Tracer("app").Start(context.Background(), name)
}

// tracing is the observer that the tests attach. OpenTelemetry returns the same observer.
type tracing struct {
	backend.NopObserver
	tracers trace.TracerProvider
	config  Config
}

func (o tracing) Attach(observed backend.Observed) (backend.Observer, error) {
	observed.System = "rabbitmq"
	return traceObserver(o.tracers, o.config, observed), nil
}

// order is a message with the context of a producer.
func order(ctx context.Context, config ...Config) *message.Message {
	msg := message.NewMessage("order-1", []byte("order 1"))
	p := propagators{}
	if len(config) > 0 {
		p.configured = config[0].Propagator
	}
	p.current().Inject(ctx, propagation.MapCarrier(msg.Metadata))
	return msg
}

// attributesOf returns attributes as texts.
func attributesOf(list []attribute.KeyValue) map[string]string {
	texts := map[string]string{}
	for _, a := range list {
		texts[string(a.Key)] = a.Value.String()
	}
	return texts
}

// linksOf returns what a span is linked to, by the kind of the link.
func linksOf(s tracetest.SpanStub) map[string]string {
	links := map[string]string{}
	for _, l := range s.Links {
		links[attributesOf(l.Attributes)["watermill.retry.link"]] = idOf(l.SpanContext)
	}
	return links
}

func idOf(s trace.SpanContext) string { return fmt.Sprintf("%s-%s", s.TraceID(), s.SpanID()) }

// b3 is W3C Trace Context in another key.
type b3 struct{ key string }

func (p b3) Fields() []string { return []string{p.key} }

func (p b3) Inject(ctx context.Context, carrier propagation.TextMapCarrier) {
	if text := traceparentOf(trace.SpanContextFromContext(ctx)); text != "" {
		carrier.Set(p.key, text)
	}
}

func (p b3) Extract(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	own := propagation.MapCarrier{traceparentKey: carrier.Get(p.key)}
	return propagation.TraceContext{}.Extract(ctx, own)
}
