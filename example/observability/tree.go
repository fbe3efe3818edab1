//go:build unix

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// shown are the attributes watermill.retry.* that the text has. The name of a wait has its tier.
var shown = []string{"outcome", "failures", "dead_reason", "redrive.by"}

// textOf returns the spans of a trace as a tree, each with the time since the first one began.
func textOf(spans []sdktrace.ReadOnlySpan) string {
	if len(spans) == 0 {
		return "there are no spans"
	}
	out := &strings.Builder{}
	there := map[trace.SpanID]bool{}
	for _, s := range spans {
		there[s.SpanContext().SpanID()] = true
	}
	_, _ = fmt.Fprintf(out, "The trace of order-%d, %s:\n", watched, spans[0].SpanContext().TraceID())
	children := map[trace.SpanID][]sdktrace.ReadOnlySpan{}
	for _, s := range spans {
		parent := s.Parent().SpanID()
		if !there[parent] {
			parent = trace.SpanID{}
		}
		children[parent] = append(children[parent], s)
	}
	attempts := map[trace.SpanID]int{}
	for _, s := range spans {
		if strings.HasPrefix(s.Name(), "process ") {
			attempts[s.SpanContext().SpanID()] = len(attempts) + 1
		}
	}
	var print func(parent trace.SpanID, depth int)
	print = func(parent trace.SpanID, depth int) {
		for _, s := range children[parent] {
			name := s.Name()
			if n := attempts[s.SpanContext().SpanID()]; n > 0 {
				name += fmt.Sprintf(", attempt %d:", n)
			}
			printSpan(out, s, name, depth, spans[0].StartTime())
			print(s.SpanContext().SpanID(), depth+1)
		}
	}
	print(trace.SpanID{}, 0)
	return out.String()
}

func printSpan(out io.Writer, s sdktrace.ReadOnlySpan, name string, depth int, began time.Time) {
	words := []string{name}
	for _, a := range s.Attributes() {
		if key, is := strings.CutPrefix(string(a.Key), "watermill.retry."); is && slices.Contains(shown, key) {
			words = append(words, key+"="+a.Value.String())
		}
	}
	if s.Status().Code == codes.Error && s.Status().Description != "" {
		words = append(words, fmt.Sprintf("error=%q", s.Status().Description))
	}
	_, _ = fmt.Fprintf(out, "%9s  %s%s\n", fmt.Sprintf("%.3fs", s.StartTime().Sub(began).Seconds()), strings.Repeat("  ", depth), strings.Join(words, " "))
}
