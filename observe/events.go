package observe

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

// events counts what the hooks report. It is on the path of each message: what it needs for a series is made once.
type events struct {
	outcomes                                               metric.Int64Counter
	duration, failures, ageAtSuccess, ageAtDeath, lateness metric.Float64Histogram
	publishes                                              metric.Int64Counter
	publishDuration                                        metric.Float64Histogram

	ofOutcome, ofHandler, ofTier, ofResult, ofKind *table
}

func newEvents(from *instruments, most int) events {
	return events{
		outcomes: from.counter(outcomes), duration: from.histogram(handlerDuration),
		failures:     from.histogram(failuresBeforeSuccess),
		ageAtSuccess: from.histogram(ageAtSuccess), ageAtDeath: from.histogram(ageAtDeath),
		lateness:  from.histogram(lateness),
		publishes: from.counter(publishes), publishDuration: from.histogram(publishDuration),

		ofOutcome: newTable(outcomes, most), ofHandler: newTable(handlerDuration, most),
		ofTier:   newTable(lateness, most),
		ofResult: newTable(publishes, most), ofKind: newTable(publishDuration, most),
	}
}

// event is the hook Event.
func (m *events) event(e retry.Event) {
	ctx := orBackground(e.Context)
	m.outcomes.Add(ctx, 1, m.ofOutcome.get(labels{e.Topic, e.Handler, string(e.Outcome), reasonOf(&e)}).add...)
	if e.Outcome == retry.Held { // another event of the delivery follows
		return
	}
	if e.Arrived > 0 {
		m.lateness.Record(ctx, e.Lateness.Seconds(), m.ofTier.get(labels{e.Topic, e.Arrived.String()}).record...)
	}
	succeeded := e.Outcome == retry.Processed || e.Outcome == retry.Recovered
	failedBefore := !e.Record.FirstFailedAt.IsZero() && (succeeded || e.Outcome == retry.DeadLettered)
	if e.Duration <= 0 && !succeeded && !failedBefore {
		return
	}
	handler := m.ofHandler.get(labels{e.Topic, e.Handler}).record
	if e.Duration > 0 {
		m.duration.Record(ctx, e.Duration.Seconds(), handler...)
	}
	if succeeded {
		m.failures.Record(ctx, float64(e.Record.Failures), handler...)
	}
	if failedBefore {
		age := either(succeeded, m.ageAtSuccess, m.ageAtDeath)
		age.Record(ctx, max(e.Age, 0).Seconds(), handler...) // the clocks of two hosts may differ
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
	m.publishes.Add(ctx, int64(p.Messages), m.ofResult.get(labels{kind, string(p.Result)}).add...)
	m.publishDuration.Record(ctx, max(p.Took, 0).Seconds(), m.ofKind.get(labels{kind}).record...)
}

func orBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}

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
	most int

	mu       sync.Mutex
	open     map[*flight]bool
	handlers map[string]bool // the handlers that have had a message
}

// A flight is a message that a handler has. It is the context of the message.
type flight struct {
	context.Context
	of      *flights
	handler string
}

// Value implements context.Context.
func (f *flight) Value(key any) any {
	if of, is := key.(*flights); is && of == f.of {
		return f
	}
	return f.Context.Value(key)
}

func newFlights(most int) *flights {
	return &flights{most: most, open: map[*flight]bool{}, handlers: map[string]bool{}}
}

// begin is the hook Begin.
func (f *flights) begin(e retry.Event) context.Context {
	one := &flight{Context: orBackground(e.Context), of: f, handler: e.Handler}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.handlers[one.handler] && len(f.handlers) >= f.most {
		one.handler = other
	}
	f.open[one], f.handlers[one.handler] = true, true
	return one
}

// event is the hook Event. An event of a message whose handler was not called has no flight.
func (f *flights) event(e retry.Event) {
	if e.Outcome == retry.Held || e.Context == nil {
		return
	}
	if one, found := e.Context.Value(f).(*flight); found {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.open, one)
	}
}

// gather counts them.
func (f *flights) gather(to figures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for handler := range f.handlers {
		to.add(inFlight, sum, 0, labels{handler})
	}
	for one := range f.open {
		to.add(inFlight, sum, 1, labels{one.handler})
	}
}
