package observe_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/retry"
)

var (
	errGone  = errors.New("the order does not exist")
	errBusy  = errors.New("the bank is busy")
	errLater = errors.New("the order is not paid")
)

func rules(c *eventtest.Settings) {
	c.Policy.Rules = []retry.Rule{
		{Name: "gone", If: retry.Is(errGone), Then: retry.Discard()},
		{Name: "busy", If: retry.Is(errBusy), Then: retry.Snooze(time.Second)},
		{Name: "later", If: retry.Is(errLater), Then: retry.GiveBack()},
	}
}

func TestOutcomesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, rules)
		registry := register(t, observe.Config{}, a)
		ctx := from(topic, handler)
		a.deliver(newMessage(ctx), nil)
		a.deliver(newMessage(ctx), errDown, errDown, nil)
		a.deliver(newMessage(ctx), errDown, errDown, errDown, errDown)
		a.deliver(newMessage(ctx), backoff.Permanent(errDown))
		a.deliver(newMessage(ctx), errBusy)
		a.deliver(newMessage(ctx), errGone)
		a.deliver(newMessage(ctx), errLater)
		settled := newMessage(ctx)
		settled.Nack()
		a.deliver(settled, errDown)
		a.deliver(newMessage(ctx), backoff.RetryAfter(errDown, 3*time.Second))
		a.deliver(a.last(ctx), nil) // parked: the handler is not called
		tries := 0
		a.refuse = func() error {
			if tries++; tries < 3 {
				return errors.New("there is no connection")
			}
			return nil
		}
		a.deliver(newMessage(ctx), errDown)
		calls := []string{`{handler="billing",topic="orders"} 15`} // a held message is measured once
		assert.Equal(t, calls, samples(t, registry, "watermill_retry_handler_duration_seconds_count"))

		var want []string
		for _, row := range []struct {
			outcome retry.Outcome
			reason  string
			count   int
		}{
			{retry.DeadLettered, "exhausted", 1}, {retry.DeadLettered, "permanent", 1}, {retry.Discarded, "gone", 1},
			{retry.GivenBack, "later", 1}, {retry.Held, "", 1}, {retry.Parked, "", 1}, {retry.Processed, "", 1},
			{retry.Recovered, "", 1}, {retry.Retried, "", 7}, {retry.Settled, "", 1}, {retry.Snoozed, "busy", 1},
		} {
			want = append(want, fmt.Sprintf(`{handler="billing",outcome="%s",reason="%s",topic="orders"} %d.0`, row.outcome, row.reason, row.count))
		}
		assert.Equal(t, want, samples(t, registry, "watermill_retry_outcomes_total"))
		assert.Empty(t, a.logged.errors())
	})
}

func TestDurationsAndAgesAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t)
		registry := register(t, observe.Config{}, a)
		ctx := from(topic, handler)
		one := func(name string, want ...string) {
			t.Helper()
			assert.Equal(t, want, samples(t, registry, name), name)
		}
		tiered := func(late time.Duration, result error) {
			time.Sleep(time.Second + late) // the handler's own time is a part of the delay
			a.deliver(a.last(ctx), result)
		}

		a.deliver(newMessage(ctx), nil)
		one("watermill_retry_handler_duration_seconds_sum", `{handler="billing",topic="orders"} 0.04`)
		one("watermill_retry_handler_duration_seconds_count", `{handler="billing",topic="orders"} 1`)
		one("watermill_retry_failures_before_success_count", `{handler="billing",topic="orders"} 1`)
		one("watermill_retry_failures_before_success_sum", `{handler="billing",topic="orders"} 0.0`)
		one("watermill_retry_age_at_success_seconds_count")
		one("watermill_retry_lateness_seconds_count")

		a.deliver(newMessage(ctx), errDown)
		tiered(250*time.Millisecond, nil)
		one("watermill_retry_handler_duration_seconds_count", `{handler="billing",topic="orders"} 3`)
		one("watermill_retry_failures_before_success_sum", `{handler="billing",topic="orders"} 1.0`)
		one("watermill_retry_age_at_success_seconds_sum", `{handler="billing",topic="orders"} 1.29`)
		one("watermill_retry_age_at_success_seconds_count", `{handler="billing",topic="orders"} 1`)
		one("watermill_retry_lateness_seconds_sum", `{tier="1s",topic="orders"} 0.25`)
		one("watermill_retry_lateness_seconds_count", `{tier="1s",topic="orders"} 1`)
		one("watermill_retry_age_at_death_seconds_count")

		a.deliver(newMessage(ctx), errDown)
		tiered(0, backoff.Permanent(errDown))
		one("watermill_retry_age_at_death_seconds_sum", `{handler="billing",topic="orders"} 1.04`)
		one("watermill_retry_age_at_death_seconds_count", `{handler="billing",topic="orders"} 1`)
		one("watermill_retry_age_at_success_seconds_count", `{handler="billing",topic="orders"} 1`)

		ahead := newMessage(ctx) // by the clock of another host
		retry.Record{Failures: 1, Topic: topic, FirstFailedAt: time.Now().Add(time.Hour)}.Write(ahead.Metadata)
		a.deliver(ahead, nil)
		one("watermill_retry_age_at_success_seconds_sum", `{handler="billing",topic="orders"} 1.29`)
		one("watermill_retry_age_at_success_seconds_count", `{handler="billing",topic="orders"} 2`)
	})
}

func TestPublishesAreCounted(t *testing.T) {
	t.Parallel()
	a := newApp(t)
	registry := register(t, observe.Config{}, a)
	a.observers.Published(backend.Published{Topic: topic, Messages: 3, Result: backend.PublishConfirmed, Took: time.Second})
	a.observers.Published(backend.Published{Topic: topic, Messages: 1, Result: backend.PublishReturned, Took: time.Second})
	a.observers.Published(backend.Published{Context: t.Context(), Copy: true, Messages: 1, Result: backend.PublishNacked, Took: 2 * time.Second})
	assert.Equal(t, []string{`{kind="app",result="confirmed"} 3.0`, `{kind="app",result="returned"} 1.0`, `{kind="copy",result="nacked"} 1.0`},
		samples(t, registry, "watermill_retry_publishes_total"))
	assert.Equal(t, []string{`{kind="app"} 2.0`, `{kind="copy"} 2.0`}, samples(t, registry, "watermill_retry_publish_duration_seconds_sum"))
}

func TestExemplarsHaveTheTraceID(t *testing.T) {
	t.Parallel()
	const id = "0102030405060708090a0b0c0d0e0f10"
	traceID, err := trace.TraceIDFromHex(id)
	require.NoError(t, err)
	for sampled, want := range map[bool]bool{true: true, false: false} {
		a := newApp(t)
		registry := register(t, observe.Config{}, a)
		span := trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: traceID, SpanID: trace.SpanID{1}, TraceFlags: trace.TraceFlags(0).WithSampled(sampled),
		})
		ctx := trace.ContextWithSpanContext(from(topic, handler), span)
		a.deliver(newMessage(ctx), errDown, nil)
		a.observers.Published(backend.Published{Context: ctx, Messages: 1, Result: backend.PublishConfirmed, Took: time.Second})
		text := scrape(t, registry)
		for _, name := range []string{
			`watermill_retry_outcomes_total{handler="billing",outcome="retried"`, "watermill_retry_handler_duration_seconds_bucket",
			"watermill_retry_failures_before_success_bucket", "watermill_retry_age_at_success_seconds_bucket", "watermill_retry_lateness_seconds_bucket",
			"watermill_retry_publishes_total", "watermill_retry_publish_duration_seconds_bucket",
		} {
			found := false
			for line := range strings.Lines(text) {
				found = found || strings.HasPrefix(line, name) && strings.Contains(line, `# {`) && strings.Contains(line, `trace_id="`+id+`"`)
			}
			assert.Equal(t, want, found, "%s, sampled: %v", name, sampled)
		}
	}
}

// TestNoTextOfAMessageIsALabel: neither errors nor ids nor payloads nor forged failure records make new series. The password
// of an address, which an error of a connection could have, is in none.
func TestNoTextOfAMessageIsALabel(t *testing.T) {
	t.Parallel()
	a := newApp(t, rules)
	a.health = func() retry.Health {
		text := "failure of amqp://billing:password@rabbit/"
		return retry.Health{
			Links: []retry.LinkHealth{{Name: "consuming", LastError: text}},
			Subscriptions: []retry.SubscriptionHealth{{Name: handler, Topic: topic, Queue: topic, LastError: text,
				Blocked: []string{text}}},
		}
	}
	registry := register(t, observe.Config{}, a)
	ctx := from(topic, handler)
	attempt := func(i int) {
		text := fmt.Sprintf("failure %d of %d", i, rand.Int())
		forged := newMessage(ctx)
		due := time.Now().Add(-rand.N(1000 * time.Second))
		retry.Record{
			Failures: 1 + i%50, Topic: topic, Handler: text, Reason: text, ErrorType: text, Subscriber: text, Traceparent: text,
			FirstFailedAt: due.Add(-time.Hour), LastFailedAt: due.Add(-[]time.Duration{time.Second, 5 * time.Second, rand.N(time.Hour)}[i%3]), DueAt: due,
			DeadReason: retry.DeadReason(text),
		}.Write(forged.Metadata)
		elsewhere := newMessage(ctx)
		retry.Record{Failures: 1, Topic: text, Handler: text, DeadReason: retry.DeadReason(text)}.Write(elsewhere.Metadata)
		parked := newMessage(ctx)
		retry.Record{Failures: 1, Topic: topic, DeadReason: retry.DeadReason(text), Remaining: time.Minute}.Write(parked.Metadata)
		msg := []*message.Message{newMessage(ctx), forged, elsewhere, parked}[i%4]
		for _, err := range []error{nil, errors.New(text), backoff.Permanent(errors.New(text)), fmt.Errorf("%s: %w", text, errGone)} {
			again := message.NewMessageWithContext(ctx, text, message.Payload(text))
			again.Metadata = msg.Metadata
			a.handle(again, func() error { return err })
		}
	}
	count := func() (n int) {
		for line := range strings.Lines(scrape(t, registry)) {
			if !strings.HasPrefix(line, "#") {
				n++
			}
		}
		return n
	}
	for i := range 120 { // each outcome and each tier
		attempt(i)
	}
	before := count()
	for i := range 1_000 {
		attempt(i)
	}
	assert.Equal(t, before, count())
	assert.NotContains(t, scrape(t, registry), "failure ")
}

// TestForgedKeysMakeFewLabels: keys come with messages, and each of these is limited. At any time 20 of them are labels at most.
func TestForgedKeysMakeFewLabels(t *testing.T) {
	t.Parallel()
	const forged, most = 12_000, 20 // a handler remembers 10,000 of them
	a := newApp(t, func(s *eventtest.Settings) {
		s.Publisher = discard{}
		s.Policy.Breaker = &retry.Breaker{Key: func(msg *message.Message) string { return msg.Metadata.Get("tenant") }}
	})
	var handlers gate.Handlers
	limits := handlers.Add(handler, 16)
	a.health = func() retry.Health {
		s := retry.SubscriptionHealth{Name: handler, Topic: topic}
		subscriptions.Describe(&s, &handlers)
		return retry.Health{Subscriptions: []retry.SubscriptionHealth{s, s}}
	}
	registry := register(t, observe.Config{}, a)
	ctx := msgctx.NewContext(from(topic, handler), &msgctx.Subscription{Gate: limits})
	for i := range forged {
		handle := func() {
			msg := newMessage(ctx)
			msg.Metadata.Set("tenant", fmt.Sprint("forged ", i))
			a.handle(msg, func() error { return backoff.RetryAfter(errDown, time.Hour) })
		}
		if handle(); i%3_000 != 2_999 {
			continue
		}
		handle() // this one has to wait
		text := scrape(t, registry)
		limited, parked := samplesOf(text, "watermill_retry_key_limit"), samplesOf(text, "watermill_retry_key_parked")
		assert.Len(t, limited, most)
		assert.Len(t, parked, most)
		assert.Contains(t, parked, fmt.Sprintf(`{handler="billing",key="forged %d"} 1.0`, i))
		assert.Equal(t, 2*most, strings.Count(text, "forged "), "no other metric has them")
	}
}

// discard is a publisher that keeps nothing.
type discard struct{}

func (discard) Publish(string, ...*message.Message) error { return nil }
func (discard) Close() error                              { return nil }

func TestLabelsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, rules)
		registry := register(t, observe.Config{MaxSeries: 10}, a)
		var all []retry.SubscriptionHealth
		keys := map[string]retry.KeyHealth{"7": {Paused: "slow", Limit: 4, Parked: 3}, "8": {Paused: "slow", Limit: 2, Parked: 3}}
		for i := range 100 {
			topic, handler := fmt.Sprintf("topic %d", i), fmt.Sprintf("handler %d", i)
			a.deliver(newMessage(from(topic, handler)), errDown, nil)
			all = append(all, retry.SubscriptionHealth{Name: handler, Topic: topic, InFlight: 1, Deliveries: 2, Keys: keys})
		}
		a.deliver(newMessage(from("last", "last")), errGone)
		a.subscriptions(all...)

		outcomes := samples(t, registry, "watermill_retry_outcomes_total")
		assert.Len(t, outcomes, 10+3)
		assert.Contains(t, outcomes, `{handler="other",outcome="retried",reason="",topic="other"} 95.0`)
		assert.Contains(t, outcomes, `{handler="other",outcome="discarded",reason="other",topic="other"} 1.0`)
		durations := samples(t, registry, "watermill_retry_handler_duration_seconds_count")
		assert.Len(t, durations, 10+1)
		assert.Contains(t, durations, `{handler="other",topic="other"} 181`)
		late := samples(t, registry, "watermill_retry_lateness_seconds_count")
		assert.Len(t, late, 10+1)
		assert.Contains(t, late, `{tier="other",topic="other"} 90`)
		flying := samples(t, registry, "watermill_retry_in_flight")
		assert.Len(t, flying, 10+1)
		assert.Contains(t, flying, `{handler="other"} 90.0`)
		for range 2 {
			delivered := samples(t, registry, "watermill_retry_deliveries_total")
			assert.Len(t, delivered, 10+1)
			assert.Contains(t, delivered, `{handler="other",topic="other"} 180.0`)
		}
		paused := samples(t, registry, "watermill_retry_paused")
		assert.Len(t, paused, 10+3)
		limited := samples(t, registry, "watermill_retry_key_limit")
		assert.Len(t, limited, 10+1)
		assert.Contains(t, limited, `{handler="other",key="other",reason="slow"} 2.0`, "the lowest limit")
		assert.Len(t, samples(t, registry, "watermill_retry_key_parked"), 10+1)
	})
}

// TestTheBoundIsThatOfTheConfig: that of the SDK, 2,000, makes a series that has other labels.
func TestTheBoundIsThatOfTheConfig(t *testing.T) {
	t.Parallel()
	a := newApp(t)
	registry := register(t, observe.Config{}, a)
	var all []retry.SubscriptionHealth
	for i := range 2_500 {
		handler := fmt.Sprintf("handler %d", i)
		a.handle(newMessage(from(topic, handler)), func() error { return nil })
		all = append(all, retry.SubscriptionHealth{Name: handler, Topic: topic})
	}
	a.subscriptions(all...)
	text := scrape(t, registry)
	assert.Len(t, samplesOf(text, "watermill_retry_outcomes_total"), 2_500)
	assert.Len(t, samplesOf(text, "watermill_retry_failures_before_success_count"), 2_500)
	assert.Len(t, samplesOf(text, "watermill_retry_in_flight"), 2_500)
	assert.NotContains(t, text, "overflow")
}

// TestStrangeTextsAreLabels: Prometheus refuses a scrape with a label that is not valid UTF-8.
func TestStrangeTextsAreLabels(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 300)
	a := newApp(t, func(c *eventtest.Settings) {
		c.Policy.Rules = []retry.Rule{{Name: "x" + long, If: retry.Is(errGone), Then: retry.Discard()}}
	})
	registry := register(t, observe.Config{}, a)
	a.deliver(newMessage(from("bad\xffname", long)), errGone)
	assert.Equal(t, []string{fmt.Sprintf(`{handler="%s",outcome="discarded",reason="x%s",topic="bad`+"\uFFFD"+`name"} 1.0`,
		strings.Repeat("é", 127), strings.Repeat("é", 31))}, samples(t, registry, "watermill_retry_outcomes_total"))

	a.subscriptions(retry.SubscriptionHealth{Name: handler, Keys: map[string]retry.KeyHealth{"bad\xff\n" + long: {Paused: "paused", Limit: 2}}})
	key := `key="bad` + "\uFFFD" + `\n` + strings.Repeat("é", 125) + `"`
	assert.Equal(t, []string{`{handler="billing",` + key + `,reason="paused"} 2.0`}, samples(t, registry, "watermill_retry_key_limit"))
}

// TestMessagesInFlightAreCountedWhereHealthDoesNot: on all paths, also on those without an event.
func TestMessagesInFlightAreCountedWhereHealthDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, rules)
		a.system = "nats"
		registry := register(t, observe.Config{}, a)
		inFlight := func(want int) {
			t.Helper()
			assert.Equal(t, []string{fmt.Sprintf(`{handler="billing"} %d.0`, want)}, samples(t, registry, "watermill_retry_in_flight"))
		}
		ctx := from(topic, handler)
		assert.Empty(t, samples(t, registry, "watermill_retry_in_flight"))
		a.handle(newMessage(ctx), func() error {
			inFlight(1)
			a.handle(newMessage(ctx), func() error {
				inFlight(2)
				return errDown
			})
			inFlight(1)
			return nil
		})
		inFlight(0)
		for _, err := range []error{nil, errDown, errGone, errBusy, errLater, backoff.Permanent(errDown)} {
			a.deliver(newMessage(ctx), err)
			inFlight(0)
		}
		a.deliver(newMessage(ctx), backoff.RetryAfter(errDown, 3*time.Second))
		a.deliver(a.last(ctx), nil) // parked: the handler is not called
		inFlight(0)
		a.handle(newMessage(ctx), func() error { panic("of the handler") })
		inFlight(0)
		inGoroutine(func() { a.handle(newMessage(ctx), func() error { exit(); return nil }) })
		inFlight(0)
		a.refuse = func() error { exit(); return nil }
		inGoroutine(func() { a.handle(newMessage(ctx), func() error { return errDown }) })
		inFlight(0)
		a.refuse = func() error { return errors.New("there is no connection") }
		go a.handle(newMessage(ctx), func() error { return errDown })
		time.Sleep(10 * time.Second)
		inFlight(1) // held
		time.Sleep(time.Hour)
		inFlight(0)
		assert.Empty(t, a.logged.errors())
	})
}

// TestTheContextOfAFlightIsThatOfTheMessage: its values and its end.
func TestTheContextOfAFlightIsThatOfTheMessage(t *testing.T) {
	t.Parallel()
	a := newApp(t)
	a.system = "nats"
	register(t, observe.Config{}, a)
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(from(topic, handler), key{}, "value"))
	msg := newMessage(ctx)
	a.handle(msg, func() error {
		assert.Equal(t, "value", msg.Context().Value(key{}))
		cancel()
		<-msg.Context().Done()
		return nil
	})
}
