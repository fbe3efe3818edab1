package observe

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// events counts what the hooks report. It is on the path of each message: what it needs for a series is made once.
type events struct {
	outcomes                                               metric.Int64Counter
	duration, failures, ageAtSuccess, ageAtDeath, lateness metric.Float64Histogram
	publishes                                              metric.Int64Counter
	publishDuration                                        metric.Float64Histogram

	ofOutcome *table[outcomeKey, []metric.AddOption]
	ofHandler *table[handlerKey, []metric.RecordOption]
	ofTier    *table[tierKey, []metric.RecordOption]
	ofResult  *table[resultKey, []metric.AddOption]
	ofKind    *table[bool, []metric.RecordOption]
}

type (
	outcomeKey struct {
		topic, handler string
		outcome        retry.Outcome
		reason         string
	}
	handlerKey struct{ topic, handler string }
	tierKey    struct {
		topic string
		tier  backoff.Tier
	}
	resultKey struct {
		copies bool
		result retry.PublishResult
	}
)

func newEvents(from *instruments, most int) events {
	return events{
		outcomes: from.counter(outcomes), duration: from.histogram(handlerDuration),
		failures:     from.histogram(failuresBeforeSuccess),
		ageAtSuccess: from.histogram(ageAtSuccess), ageAtDeath: from.histogram(ageAtDeath),
		lateness:  from.histogram(lateness),
		publishes: from.counter(publishes), publishDuration: from.histogram(publishDuration),

		ofOutcome: newTable(most, func(k outcomeKey) []metric.AddOption {
			return []metric.AddOption{labelled(outcomes, k.topic, k.handler, string(k.outcome), k.reason)}
		}, func(k outcomeKey) outcomeKey {
			return outcomeKey{other, other, k.outcome, either(k.reason == "", "", other)}
		}),
		ofHandler: newTable(most, func(k handlerKey) []metric.RecordOption {
			return []metric.RecordOption{labelled(handlerDuration, k.topic, k.handler)}
		}, func(handlerKey) handlerKey { return handlerKey{other, other} }),
		ofTier: newTable(most, func(k tierKey) []metric.RecordOption {
			return []metric.RecordOption{labelled(lateness, k.topic, either(k.tier == 0, other, k.tier.String()))}
		}, func(tierKey) tierKey { return tierKey{topic: other} }),
		ofResult: newTable(most, func(k resultKey) []metric.AddOption {
			return []metric.AddOption{labelled(publishes, publishKind(k.copies), string(k.result))}
		}, func(k resultKey) resultKey { return resultKey{k.copies, other} }),
		ofKind: newTable(most, func(copies bool) []metric.RecordOption {
			return []metric.RecordOption{labelled(publishDuration, publishKind(copies))}
		}, func(copies bool) bool { return copies }),
	}
}

func publishKind(copies bool) string { return either(copies, "copy", "app") }

// event is the hook Event.
func (m *events) event(e retry.Event) {
	ctx := orBackground(e.Context)
	m.outcomes.Add(ctx, 1, m.ofOutcome.get(outcomeKey{e.Topic, e.Handler, e.Outcome, reasonOf(&e)})...)
	if e.Outcome == retry.Held { // another event of the delivery follows
		return
	}
	if e.Arrived > 0 {
		m.lateness.Record(ctx, e.Lateness.Seconds(), m.ofTier.get(tierKey{e.Topic, e.Arrived})...)
	}
	succeeded := e.Outcome == retry.Processed || e.Outcome == retry.Recovered
	failedBefore := !e.Record.FirstFailedAt.IsZero() && (succeeded || e.Outcome == retry.DeadLettered)
	if e.Duration <= 0 && !succeeded && !failedBefore {
		return
	}
	labels := m.ofHandler.get(handlerKey{e.Topic, e.Handler})
	if e.Duration > 0 {
		m.duration.Record(ctx, e.Duration.Seconds(), labels...)
	}
	if succeeded {
		m.failures.Record(ctx, float64(e.Record.Failures), labels...)
	}
	if failedBefore {
		age := either(succeeded, m.ageAtSuccess, m.ageAtDeath)
		age.Record(ctx, max(e.Age, 0).Seconds(), labels...) // the clocks of two hosts may differ
	}
}

// reasonOf never returns the text of an error.
func reasonOf(e *retry.Event) string {
	if e.Outcome == retry.DeadLettered {
		return labelText(string(e.Record.DeadReason), maxReason)
	}
	return labelText(e.Rule, maxReason)
}

// published is the hook Published.
func (m *events) published(p retry.Published) {
	ctx := orBackground(p.Context)
	m.publishes.Add(ctx, int64(p.Messages), m.ofResult.get(resultKey{p.Copy, p.Result})...)
	m.publishDuration.Record(ctx, max(p.Took, 0).Seconds(), m.ofKind.get(p.Copy)...)
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
