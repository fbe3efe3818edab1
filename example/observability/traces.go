//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// otlpEndpoint is the variable of OpenTelemetry with the address of a collector.
const otlpEndpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"

// traces are the spans of this process. They go to the collector of OTEL_EXPORTER_OTLP_ENDPOINT, where that is set, and into a file,
// where one is named. One trace is kept, to be printed.
type traces struct {
	*sdktrace.TracerProvider
	kept *kept
	file *os.File
}

func newTraces(ctx context.Context, file string) (*traces, error) {
	t := &traces{kept: &kept{}}
	sdk := []sdktrace.TracerProviderOption{
		sdktrace.WithSyncer(t.kept),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", handler))),
	}
	if file != "" {
		var err error
		if t.file, err = os.Create(file); err != nil {
			return nil, fmt.Errorf("-spans: %w", err)
		}
		lines, err := stdouttrace.New(stdouttrace.WithWriter(t.file))
		if err != nil {
			return nil, err
		}
		sdk = append(sdk, sdktrace.WithSyncer(lines))
	}
	if os.Getenv(otlpEndpoint) != "" {
		collector, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", otlpEndpoint, err)
		}
		sdk = append(sdk, sdktrace.WithBatcher(collector))
	}
	t.TracerProvider = sdktrace.NewTracerProvider(sdk...)
	return t, nil
}

func (t *traces) close(ctx context.Context) error {
	err := t.Shutdown(ctx)
	if t.file != nil {
		err = errors.Join(err, t.file.Close())
	}
	return err
}

// kept keeps the spans of one trace. It is an exporter of the SDK.
type kept struct {
	mu    sync.Mutex
	trace trace.TraceID
	spans []sdktrace.ReadOnlySpan
}

// keep names the trace.
func (k *kept) keep(id trace.TraceID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trace = id
}

// ExportSpans implements sdktrace.SpanExporter.
func (k *kept) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range spans {
		// The first span of the trace ends before its id is known.
		if k.trace == s.SpanContext().TraceID() || !k.trace.IsValid() && len(k.spans) < 100 {
			k.spans = append(k.spans, s)
		}
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (*kept) Shutdown(context.Context) error { return nil }

// all returns the spans of the trace, by their start.
func (k *kept) all() (spans []sdktrace.ReadOnlySpan) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.spans {
		if s.SpanContext().TraceID() == k.trace {
			spans = append(spans, s)
		}
	}
	slices.SortStableFunc(spans, func(a, b sdktrace.ReadOnlySpan) int {
		return cmp.Compare(a.StartTime().UnixNano(), b.StartTime().UnixNano())
	})
	return spans
}
