package observe

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

// events counts what the hooks report. It is on the path of each message: what it needs for a series is made once.
type events struct {
	*instruments

	mu     sync.RWMutex
	series series[options]
}

// options are the labels of one series, as a counter and as a histogram takes them.
type options struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

// record counts so many, or adds a value to a histogram. With labels that were there before it allocates nothing.
func (m *events) record(ctx context.Context, of Metric, value float64, values labels) {
	options := m.optionsOf(of, values)
	if of.Kind == histogram {
		m.histograms[of.Name].Record(ctx, value, options.record...)
	} else {
		m.counters[of.Name].Add(ctx, int64(value), options.add...)
	}
}

func (m *events) optionsOf(of Metric, values labels) options {
	m.mu.RLock()
	known := m.series.all[seriesKey{of.Name, values}]
	m.mu.RUnlock()
	if known != nil {
		return *known
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	made, values, found := m.series.at(of, values)
	if !found {
		option := labelled(of, values)
		*made = options{[]metric.AddOption{option}, []metric.RecordOption{option}}
	}
	return *made
}

// event is the hook Event.
func (m *events) event(e retry.Event) {
	ctx := orBackground(e.Context)
	m.record(ctx, outcomes, 1, labels{e.Topic, e.Handler, string(e.Outcome), reasonOf(&e)})
	if e.Outcome == retry.Held { // another event of the delivery follows
		return
	}
	if e.Arrived > 0 {
		m.record(ctx, lateness, e.Lateness.Seconds(), labels{e.Topic, e.Arrived.String()})
	}
	handler := labels{e.Topic, e.Handler}
	if e.Duration > 0 {
		m.record(ctx, handlerDuration, e.Duration.Seconds(), handler)
	}
	succeeded := e.Outcome == retry.Processed || e.Outcome == retry.Recovered
	if succeeded {
		m.record(ctx, failuresBeforeSuccess, float64(e.Record.Failures), handler)
	}
	if !e.Record.FirstFailedAt.IsZero() && (succeeded || e.Outcome == retry.DeadLettered) {
		// the clocks of two hosts may differ
		m.record(ctx, either(succeeded, ageAtSuccess, ageAtDeath), max(e.Age, 0).Seconds(), handler)
	}
}

// reasonOf never returns the text of an error.
func reasonOf(e *retry.Event) string {
	if e.Outcome.GivenUp() {
		return labelText(string(e.Record.DeadReason), maxReason)
	}
	return labelText(e.Rule, maxReason)
}

// published is the hook Published.
func (m *events) published(p backend.Published) {
	ctx := orBackground(p.Context)
	kind := either(p.Copy, "copy", "app")
	m.record(ctx, publishes, float64(p.Messages), labels{kind, string(p.Result)})
	m.record(ctx, publishDuration, max(p.Took, 0).Seconds(), labels{kind})
}

func orBackground(ctx context.Context) context.Context { return cmp.Or(ctx, context.Background()) }

// age returns how long ago a time was.
func age(at, now time.Time) float64 { return max(now.Sub(at), 0).Seconds() }

func either[T any](condition bool, yes, no T) T {
	if condition {
		return yes
	}
	return no
}

// flights counts the messages that handlers have, where Health does not.
type flights struct {
	mu     sync.Mutex
	counts figures // how many each handler has; 0: it has had some
}

// A flight is a message that a handler has. The context of the message has it.
type flight struct {
	handler string
	ended   atomic.Bool
}

func newFlights(most int) *flights { return &flights{counts: newFigures(most)} }

func (f *flights) add(n float64, handler string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.add(inFlight, sum, n, labels{handler})
}

// begin is the hook Begin.
func (f *flights) begin(e retry.Event) context.Context {
	f.add(1, e.Handler)
	return context.WithValue(orBackground(e.Context), f, &flight{handler: e.Handler})
}

// event is the hook Event. An event of a message whose handler was not called has no flight.
func (f *flights) event(e retry.Event) {
	if e.Outcome == retry.Held || e.Context == nil {
		return
	}
	if one, found := e.Context.Value(f).(*flight); found && one.ended.CompareAndSwap(false, true) {
		f.add(-1, one.handler)
	}
}

// gather counts them.
func (f *flights) gather(to figures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for of, messages := range f.counts.each(inFlight) {
		to.add(inFlight, sum, messages, of)
	}
}
