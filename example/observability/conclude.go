//go:build unix

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/tieredretry/watermill-retry/retry"
)

const outcomesQuery = `sum by (outcome) (watermill_retry_outcomes_total)`

// conclude prints what Prometheus has, and the trace. It returns an error if something of it is missing.
func (s *show) conclude(ctx context.Context) error {
	s.line("")
	if err := s.scraped(ctx); err != nil {
		return err
	}
	if err := s.alerted(ctx); err != nil {
		return err
	}
	if err := s.exemplars(ctx); err != nil {
		return err
	}
	s.line("")
	var missing []string
	complete := func() bool { missing = missingSpans(s.traces.kept.all(), s.opts.queue); return len(missing) == 0 }
	if err := s.until(ctx, "the trace was complete", complete); err != nil {
		s.line("%s", textOf(s.traces.kept.all()))
		return fmt.Errorf("%w: it lacks %s", err, strings.Join(missing, ", "))
	}
	s.line("%s", textOf(s.traces.kept.all()))
	return nil
}

// scraped waits until Prometheus has the outcomes that the handler itself has counted: with -once exactly those, because no orders come
// any more.
func (s *show) scraped(ctx context.Context) error {
	shown := []retry.Outcome{retry.Processed, retry.Recovered, retry.Retried, retry.DeadLettered}
	want := map[string]int{}
	var have map[string]float64
	var fault error
	equal := func() bool {
		have, fault = s.watcher.counts(ctx, outcomesQuery, "outcome")
		for _, o := range shown { // the handler goes on meanwhile
			want[string(o)] = s.journal.count(o)
			if have[string(o)] != float64(want[string(o)]) && (s.opts.once || have[string(o)] == 0) {
				return false
			}
		}
		return fault == nil
	}
	if err := s.until(ctx, "Prometheus had all outcomes", equal); err != nil {
		return fmt.Errorf("%w: %s is %v, the handler counts %v, the last error is %v", err, outcomesQuery, have, want, fault)
	}
	words := []string{}
	for _, o := range slices.Sorted(maps.Keys(have)) {
		words = append(words, fmt.Sprintf("%s=%.0f", o, have[o]))
	}
	s.line("outcomes, in Prometheus:  %s", strings.Join(words, " "))
	return nil
}

// alerted waits until an alert has fired at some time.
func (s *show) alerted(ctx context.Context) error {
	var fired map[string]float64
	has := func() bool {
		var err error
		fired, err = s.watcher.counts(ctx, `count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1h]))`, "alertname")
		return err == nil && len(fired) > 0
	}
	if err := s.until(ctx, "an alert fired", has); err != nil {
		return err
	}
	s.line("alerts that have fired:   %s", strings.Join(slices.Sorted(maps.Keys(fired)), " "))
	return nil
}

// exemplars waits until Prometheus has trace ids beside the metrics.
func (s *show) exemplars(ctx context.Context) error {
	traced := map[string]bool{}
	has := func() bool {
		answer, err := s.watcher.QueryExemplars(ctx, `{__name__=~"watermill_retry_.+"}`, s.began.Add(-time.Minute), time.Now())
		if err != nil {
			return false
		}
		for _, series := range answer {
			for _, e := range series.Exemplars {
				if e.Labels["trace_id"] != "" {
					traced[string(series.SeriesLabels["__name__"])] = true
				}
			}
		}
		return len(traced) > 0
	}
	if err := s.until(ctx, "Prometheus had exemplars", has); err != nil {
		return err
	}
	s.line("exemplars with trace ids: %s", strings.Join(slices.Sorted(maps.Keys(traced)), " "))
	return nil
}

// missingSpans returns what the trace of the watched order lacks: order, send, an attempt for each try, the waits between them, the dead
// letter, the redrive, and the last attempt.
func missingSpans(spans []sdktrace.ReadOnlySpan, queue string) (missing []string) {
	want := map[string]int{
		order{Number: watched}.id(): 1, "send " + queue: 1, "process " + queue: len(schedule) + 2, "dead-letter " + queue: 1, "redrive": 1,
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
			missing = append(missing, fmt.Sprintf("%d of %d %q", want[name]-have[name], want[name], name))
		}
	}
	return missing
}
