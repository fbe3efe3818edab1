//go:build unix

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// otlpEndpoint is the variable of OpenTelemetry with the address of a collector.
const otlpEndpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"

// shown are the attributes watermill.retry.* that the text has. The name of a wait has its tier.
var shown = []string{"outcome", "failures", "dead_reason", "redrive.by"}

// newTraces returns the traces of this process. They go to the collector of OTEL_EXPORTER_OTLP_ENDPOINT, where that
// is set.
func newTraces(ctx context.Context, kept *kept) (*sdktrace.TracerProvider, error) {
	sdk := []sdktrace.TracerProviderOption{
		sdktrace.WithSyncer(kept),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", handler))),
	}
	if os.Getenv(otlpEndpoint) != "" {
		collector, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", otlpEndpoint, err)
		}
		sdk = append(sdk, sdktrace.WithBatcher(collector))
	}
	return sdktrace.NewTracerProvider(sdk...), nil
}

// kept keeps the spans of one trace, to print them. It is an exporter of the SDK.
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

// printTrace prints the spans, each with the time since the first one began. It reports whether all attempts of the
// watched order are there: those until it died, and the one after the redrive.
func printTrace(out io.Writer, spans []sdktrace.ReadOnlySpan) (complete bool) {
	attempts := 0
	for _, s := range spans {
		text := s.Name()
		if strings.HasPrefix(text, "process ") {
			attempts++
			text += fmt.Sprintf(", attempt %d:", attempts)
		}
		began := s.StartTime().Sub(spans[0].StartTime()).Seconds()
		_, _ = fmt.Fprintf(out, "%8.3fs  %s%s\n", began, text, attributesOf(s))
	}
	return attempts == len(schedule)+2
}

func attributesOf(s sdktrace.ReadOnlySpan) (text string) {
	for _, a := range s.Attributes() {
		if key, is := strings.CutPrefix(string(a.Key), "watermill.retry."); is && slices.Contains(shown, key) {
			text += " " + key + "=" + a.Value.String()
		}
	}
	if s.Status().Code == codes.Error && s.Status().Description != "" {
		text += fmt.Sprintf(" error=%q", s.Status().Description)
	}
	return text
}
