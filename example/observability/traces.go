//go:build unix

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
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

// missing returns what the trace of the watched order lacks: order, send, an attempt for each try, the waits between
// them, the dead letter, the redrive, and the last attempt.
func missing(spans []sdktrace.ReadOnlySpan, queue string) (lacks []string) {
	want := map[string]int{
		order{Number: watched}.id(): 1, "send " + queue: 1, "process " + queue: len(schedule) + 2,
		"dead-letter " + queue: 1, "redrive": 1,
	}
	for _, tier := range schedule.Tiers() {
		want["wait "+tier.String()] = 1
	}
	have := map[string]int{}
	for _, s := range spans {
		have[s.Name()]++
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if have[name] < want[name] {
			lacks = append(lacks, fmt.Sprintf("%d of %d %q", want[name]-have[name], want[name], name))
		}
	}
	return lacks
}

// printTrace prints the spans as a tree, each with the time since the first one began.
func printTrace(out io.Writer, spans []sdktrace.ReadOnlySpan) {
	depths := map[trace.SpanID]int{} // 1 for a span without a parent
	children := map[trace.SpanID][]sdktrace.ReadOnlySpan{}
	for _, s := range spans {
		depths[s.SpanContext().SpanID()] = 1
	}
	for _, s := range spans {
		parent := s.Parent().SpanID()
		if depths[parent] == 0 {
			parent = trace.SpanID{}
		}
		children[parent] = append(children[parent], s)
	}
	attempt := 0
	var print func(parent trace.SpanID, depth int)
	print = func(parent trace.SpanID, depth int) {
		for _, s := range children[parent] {
			text := s.Name()
			if strings.HasPrefix(text, "process ") {
				attempt++
				text += fmt.Sprintf(", attempt %d:", attempt)
			}
			began := s.StartTime().Sub(spans[0].StartTime()).Seconds()
			_, _ = fmt.Fprintf(out, "%8.3fs  %s%s%s\n", began, strings.Repeat("  ", depth), text, attributesOf(s))
			print(s.SpanContext().SpanID(), depth+1)
		}
	}
	print(trace.SpanID{}, 0)
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
