package observe

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

var errDown = errors.New("the bank is down")

// newApp is an app whose handler "billing" of "orders" is traced.
func newApp(t *testing.T, tracers trace.TracerProvider, handler message.NoPublishHandlerFunc, change ...func(*retrytest.Config)) *retrytest.App {
	t.Helper()
	config := retrytest.Config{Policy: retry.Policy{Schedule: backoff.Schedule{time.Second, 5 * time.Second}}}
	for _, c := range change {
		c(&config)
	}
	app := retrytest.NewWithConfig(t, config)
	app.Observe(tracing{tracers: tracers})
	app.AddConsumerHandler(app.Router, "billing", "orders", handler)
	return app
}

// TestOneTrace: the order, three attempts, the waits between them, the dead letter, the redrive and the success are one trace.
func TestOneTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		failing := 4 // calls
		app := newApp(t, r, func(*message.Message) error {
			time.Sleep(100 * time.Millisecond)
			if failing--; failing >= 0 {
				return errDown
			}
			return nil
		})
		ctx, producer := r.start("checkout")
		producer.End()
		began := time.Now()
		story := app.Send("orders", order(ctx)).DeadLettered(retry.DeadReasonExhausted)

		attempts := r.named("process orders")
		require.Len(t, attempts, 3, "%v", r.names())
		assert.Equal(t, []string{"checkout", "process orders", "wait 1s", "process orders", "wait 5s", "process orders", "dead-letter orders"}, r.names())
		dead := story.DeadLetter()
		record, found := retry.ReadRecord(dead.Metadata)
		require.True(t, found)
		assert.Equal(t, traceparentOf(attempts[2].SpanContext), record.Traceparent, "the record leads to the last attempt")
		waits := r.named("wait 1s")
		assert.Equal(t, began.Add(100*time.Millisecond).UTC(), waits[0].StartTime.UTC(), "from the failure")
		assert.Equal(t, attempts[1].StartTime, waits[0].EndTime, "to the next attempt")
		assert.Equal(t, map[string]string{"previous attempt": idOf(attempts[0].SpanContext)}, linksOf(waits[0]))

		time.Sleep(time.Hour)
		redriven := letters.Fresh(dead)
		redriven.Metadata[recordkey.Traceparent] = record.Traceparent // as each Store keeps it
		redrivenAt := time.Now()
		letters.Redriven{}.Add(letters.PastRedrive{
			Run: "run-1", At: redrivenAt, By: "me@desk", Note: "the bank is back", Failures: 3, DeadReason: retry.DeadReasonExhausted,
		}).Write(redriven.Metadata)
		time.Sleep(time.Second)
		app.Send("orders", redriven).Processed()

		attempts = r.named("process orders")
		require.Len(t, attempts, 5)
		redrive := r.only("redrive") // its retry does not show it again
		assert.Equal(t, redrivenAt.UTC(), redrive.StartTime.UTC())
		assert.Equal(t, redrive.StartTime, redrive.EndTime)
		assert.Equal(t, map[string]string{
			"watermill.retry.redrive.run": "run-1", "watermill.retry.redrive.by": "me@desk", "watermill.retry.redrive.note": "the bank is back",
			"watermill.retry.failures": "3", "watermill.retry.dead_reason": "exhausted",
		}, attributesOf(redrive.Attributes))
		assert.Equal(t, map[string]string{"previous attempt": idOf(attempts[2].SpanContext)}, linksOf(redrive))

		for i, s := range r.spans() {
			assert.Equal(t, producer.SpanContext().TraceID(), s.SpanContext.TraceID(), "%d: %s", i, s.Name)
		}
		for i, s := range attempts {
			assert.Equal(t, producer.SpanContext().SpanID(), s.Parent.SpanID(), "the parent of attempt %d", i+1)
			want := map[string]string{"producer": idOf(producer.SpanContext())}
			if i > 0 {
				want["previous attempt"] = idOf(attempts[i-1].SpanContext)
			}
			assert.Equal(t, want, linksOf(s), "of attempt %d", i+1)
		}
		for _, s := range append(r.named("wait 1s"), r.only("wait 5s"), redrive) {
			assert.Equal(t, producer.SpanContext().SpanID(), s.Parent.SpanID(), s.Name)
		}
		letter := r.only("dead-letter orders") // a message that was sent, on a queue of its own
		assert.Equal(t, attempts[2].SpanContext.SpanID(), letter.Parent.SpanID())
		assert.Equal(t, trace.SpanKindProducer, letter.SpanKind)
		attributes := attributesOf(letter.Attributes)
		assert.NotEmpty(t, attributes["messaging.destination.name"])
		delete(attributes, "messaging.destination.name")
		assert.Equal(t, map[string]string{
			"messaging.system": "rabbitmq", "messaging.operation.name": "dead-letter", "messaging.operation.type": "send", "messaging.message.id": "order-1",
			"watermill.retry.handler": "billing", "watermill.retry.failures": "3", "watermill.retry.dead_reason": "exhausted",
			"watermill.retry.cause": "e6931d4d",
		}, attributes)
	})
}

// TestTraceWithoutAProducer: a message that has no context begins a trace at its first attempt, which its further attempts continue.
func TestTraceWithoutAProducer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		app := newApp(t, r, func(*message.Message) error { return errDown })
		app.Send("orders", message.NewMessage("order-1", nil)).DeadLettered(retry.DeadReasonExhausted)
		attempts := r.named("process orders")
		require.Len(t, attempts, 3)
		assert.False(t, attempts[0].Parent.IsValid())
		for i, s := range attempts[1:] {
			assert.Equal(t, attempts[i].SpanContext.TraceID(), s.SpanContext.TraceID())
			assert.Equal(t, attempts[i].SpanContext.SpanID(), s.Parent.SpanID())
			assert.Equal(t, map[string]string{"previous attempt": idOf(attempts[i].SpanContext)}, linksOf(s))
		}
		assert.Equal(t, attempts[0].SpanContext.SpanID(), r.only("wait 1s").Parent.SpanID())
	})
}

type secretError struct{}

func (secretError) Error() string { return "password=hunter2" }

// TestSpanOfAnAttempt is the table of outcomes: what the span of the last attempt has.
func TestSpanOfAnAttempt(t *testing.T) {
	t.Parallel()
	base := map[string]string{
		"messaging.system": "rabbitmq", "messaging.operation.name": "process", "messaging.operation.type": "process",
		"messaging.destination.name": "orders", "messaging.message.id": "order-1", "watermill.retry.handler": "billing",
	}
	failOnce := func(err error) func(*message.Message) error {
		return func(msg *message.Message) error {
			if record, _ := retry.ReadRecord(msg.Metadata); record.Failures+record.Snoozes > 0 {
				return nil
			}
			return err
		}
	}
	failFirst := func(err error) func(*message.Message) error {
		return func(*message.Message) error {
			first := err
			err = nil
			return first
		}
	}
	rule := func(condition func(retry.Record, error) bool, then retry.Action) func(*retry.Policy) {
		return func(p *retry.Policy) { p.Rules = []retry.Rule{{Name: "my rule", If: condition, Then: then}} }
	}
	const plain, secret = "*errors.errorString", "observe.secretError"
	const retried = "outcome=retried; failures=1; failures_before=0; tier=1s; delay_ms=1000"
	for name, test := range map[string]struct {
		handler     func(*message.Message) error
		policy      func(*retry.Policy)
		attempt     int    // from 0
		want        string // the attributes watermill.retry.*
		errorType   string // "": no error
		message     string // of the exception
		description string // of the status; "": the message
	}{
		"processed": {
			handler: func(*message.Message) error { return nil },
			want:    "outcome=processed; failures=0; failures_before=0",
		},
		"retried": {handler: failOnce(errDown), want: retried, errorType: plain, message: "the bank is down"},
		"recovered": {
			handler: failOnce(errDown), attempt: 1,
			want: "outcome=recovered; failures=1; failures_before=1; arrived_tier=1s; lateness_ms=1",
		},
		"snoozed": {
			handler: failOnce(errDown), policy: rule(retry.Is(errDown), retry.Snooze(5*time.Second)),
			want:      "outcome=snoozed; failures=0; failures_before=0; snoozes=1; tier=5s; delay_ms=5000; rule=my rule",
			errorType: plain, message: "the bank is down",
		},
		"discarded": {
			handler: failOnce(errDown), policy: rule(retry.Is(errDown), retry.Discard()),
			want:      "outcome=discarded; failures=1; failures_before=0; rule=my rule",
			errorType: plain, message: "the bank is down",
		},
		"dead-lettered": {
			handler:   func(*message.Message) error { return backoff.Permanent(errDown) },
			want:      "outcome=dead-lettered; failures=1; failures_before=0; dead_reason=permanent",
			errorType: plain, message: "the bank is down",
		},
		"given back": {
			handler: failFirst(secretError{}), policy: rule(retry.As[secretError](), retry.GiveBack()),
			want:      "outcome=given back; failures=0; failures_before=0; rule=my rule",
			errorType: secret, description: "given back: observe.secretError",
		},
		"settled": {
			handler:   func(msg *message.Message) error { msg.Ack(); return secretError{} },
			want:      "outcome=settled; failures=0; failures_before=0",
			errorType: secret, description: "settled: observe.secretError",
		},
		"without its text": {
			handler: failOnce(secretError{}), policy: func(c *retry.Policy) { c.RedactReason = func(string, error) string { return "" } },
			want: retried, errorType: secret, description: secret,
		},
		"with another text": {
			handler: failOnce(secretError{}), want: retried, errorType: secret, message: "password=***",
			policy: func(c *retry.Policy) {
				c.RedactReason = func(string, error) string { return "password=***" }
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRecorder(t)
				app := newApp(t, r, test.handler, func(c *retrytest.Config) {
					if test.policy != nil {
						test.policy(&c.Policy)
					}
				})
				app.Send("orders", message.NewMessage("order-1", nil))
				require.Greater(t, len(r.named("process orders")), test.attempt)
				s := r.named("process orders")[test.attempt]
				assert.Equal(t, trace.SpanKindConsumer, s.SpanKind)
				want := maps.Clone(base)
				for attribute := range strings.SplitSeq(test.want, "; ") {
					key, value, _ := strings.Cut(attribute, "=")
					want["watermill.retry."+key] = value
				}
				if test.errorType == "" {
					assert.Equal(t, want, attributesOf(s.Attributes))
					assert.Equal(t, codes.Unset, s.Status.Code)
					assert.Empty(t, s.Events)
					return
				}
				want["error.type"] = test.errorType
				assert.Equal(t, want, attributesOf(s.Attributes))
				assert.Equal(t, codes.Error, s.Status.Code)
				assert.Equal(t, cmp.Or(test.description, test.message), s.Status.Description)
				exception := map[string]string{"exception.type": test.errorType}
				if test.message != "" {
					exception["exception.message"] = test.message
				}
				require.Len(t, s.Events, 1)
				assert.Equal(t, "exception", s.Events[0].Name)
				assert.Equal(t, exception, attributesOf(s.Events[0].Attributes))
			})
		})
	}
}

// TestDeadLetterWithoutACall: a message that is too old when it comes has a span of its dead letter in the trace of its producer.
func TestDeadLetterWithoutACall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		app := newApp(t, r, func(*message.Message) error { return errDown }, func(c *retrytest.Config) {
			c.Policy.MaxAge = time.Minute
			c.Policy.MaxAgeFrom = func(*message.Message) time.Time { return time.Now().Add(-time.Hour) }
		})
		ctx, producer := r.start("checkout")
		producer.End()
		app.Send("orders", order(ctx)).DeadLettered(retry.DeadReasonExpired)
		assert.Empty(t, r.named("process orders"))
		dead := r.only("dead-letter orders")
		assert.Equal(t, producer.SpanContext().SpanID(), dead.Parent.SpanID())
		assert.Equal(t, map[string]string{"producer": idOf(producer.SpanContext())}, linksOf(dead))
	})
}

// TestParkedMessagesHaveOneWait: the rounds of a long delay are no attempts.
func TestParkedMessagesHaveOneWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		app := newApp(t, r, func(msg *message.Message) error {
			if _, again := retry.ReadRecord(msg.Metadata); again {
				return nil
			}
			return backoff.RetryAfter(errDown, 17*time.Second)
		}, func(c *retrytest.Config) { c.TiersWait = true })
		app.Send("orders", message.NewMessage("order-1", nil)).Processed()
		assert.Equal(t, []string{"process orders", "wait 5s", "process orders"}, r.names())
		wait := r.only("wait 5s")
		assert.GreaterOrEqual(t, wait.EndTime.Sub(wait.StartTime), 17*time.Second)
	})
}

// TestEverySpanEnds: however a handler ends. The recorder fails the test for each span that does not.
func TestEverySpanEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handler   func(*message.Message) ([]*message.Message, error)
		change    func(*eventtest.Settings)
		errorType string
	}{
		"panic":        {handler: func(*message.Message) ([]*message.Message, error) { panic("no") }, errorType: "*retry.PanicError"},
		"goexit":       {handler: func(*message.Message) ([]*message.Message, error) { runtime.Goexit(); return nil, nil }, errorType: "*errors.errorString"},
		"nil message":  {handler: func(*message.Message) ([]*message.Message, error) { return []*message.Message{nil}, nil }, errorType: "*errors.errorString"},
		"error panics": {handler: func(*message.Message) ([]*message.Message, error) { return nil, panicking{} }, errorType: "observe.panicking"},
		"error panics after an ack": {
			handler:   func(msg *message.Message) ([]*message.Message, error) { msg.Ack(); return nil, panicking{} },
			errorType: "observe.panicking",
		},
		"observe panics": {
			handler: func(*message.Message) ([]*message.Message, error) { return nil, errDown }, errorType: "*errors.errorString",
			change: func(c *eventtest.Settings) {
				c.Observers.Attach(eventtest.OnEvent(func(retry.Event) { panic("no") }), backend.Observed{})
			},
		},
		"rule ends the goroutine": {
			handler: func(*message.Message) ([]*message.Message, error) { return nil, errDown }, errorType: "*errors.errorString",
			change: func(c *eventtest.Settings) {
				c.Policy.Rules = []retry.Rule{{Name: "no", If: func(retry.Record, error) bool { runtime.Goexit(); return true }, Then: retry.Discard()}}
			},
		},
		"publisher ends the goroutine": {
			handler: func(*message.Message) ([]*message.Message, error) { return nil, errDown }, errorType: "*errors.errorString",
			change: func(c *eventtest.Settings) {
				c.Publisher = publisherFunc(func() error { runtime.Goexit(); return nil })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecorder(t)
			tiered := newRetry(t, r, test.change)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = tiered.Middleware(test.handler)(message.NewMessage("order-1", nil))
			}()
			<-done
			s := r.only("process ")
			assert.Equal(t, codes.Error, s.Status.Code)
			assert.Equal(t, test.errorType, attributesOf(s.Attributes)["error.type"])
		})
	}
}

type panicking struct{}

func (panicking) Error() string { panic("no text") }
func (panicking) Unwrap() error { panic("no cause") }

// newRetry is the middleware alone, whose copies are published to nothing.
func newRetry(t testing.TB, tracers trace.TracerProvider, change func(*eventtest.Settings)) *middleware.TieredRetry {
	t.Helper()
	var observers backend.Observers
	observers.Attach(tracing{tracers: tracers}, backend.Observed{})
	config := eventtest.Settings{
		Publisher: publisherFunc(func() error { return nil }), Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}},
		Traits: backend.Traits{Observers: &observers},
	}
	if change != nil {
		change(&config)
	}
	tiered, err := config.Make(nil)
	require.NoError(t, err)
	return tiered
}

// publisherFunc is what a publisher does.
type publisherFunc func() error

func (p publisherFunc) Publish(string, ...*message.Message) error { return p() }
func (p publisherFunc) Close() error                              { return nil }

// TestHeldIsAnEvent: a message that is held is one attempt, which ends with its last outcome.
func TestHeldIsAnEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		tries := 0
		tiered := newRetry(t, r, func(c *eventtest.Settings) {
			c.Publisher = publisherFunc(func() error {
				if tries++; tries < 3 {
					return secretError{}
				}
				return nil
			})
		})
		_, err := tiered.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errDown })(message.NewMessage("1", nil))
		require.NoError(t, err)
		s := r.only("process ")
		require.Len(t, s.Events, 2)
		assert.Equal(t, "held", s.Events[0].Name)
		assert.Equal(t, map[string]string{"watermill.retry.destination": "1s.", "error.type": "observe.secretError"}, attributesOf(s.Events[0].Attributes))
		assert.Equal(t, "exception", s.Events[1].Name)
		assert.Equal(t, "retried", attributesOf(s.Attributes)["watermill.retry.outcome"])
		assert.Greater(t, s.EndTime.Sub(s.StartTime), 50*time.Millisecond, "the hold is a part of the attempt")
	})
}

// TestForgedTraceparents: what is no traceparent links to nothing, and the message is handled as without it.
func TestForgedTraceparents(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"garbage": "garbage", "empty parts": "---", "binary": "\x00\xff\xfe",
		"zero":       "00-00000000000000000000000000000000-0000000000000000-01",
		"upper case": "00-" + strings.Repeat("A", 32) + "-" + strings.Repeat("A", 16) + "-01",
		"version ff": "ff-" + strings.Repeat("a", 32) + "-" + strings.Repeat("b", 16) + "-01",
		"huge":       "01-" + strings.Repeat("a", 32) + "-" + strings.Repeat("b", 16) + "-01-" + strings.Repeat("x", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecorder(t)
			tiered := newRetry(t, r, nil)
			msg := message.NewMessage("1", nil)
			retry.Record{Failures: 1, FirstFailedAt: time.Now(), LastFailedAt: time.Now().Add(time.Hour)}.Write(msg.Metadata)
			msg.Metadata[recordkey.Traceparent], msg.Metadata[letters.RedrivenKey] = text, text
			if name != "huge" { // the propagator reads it
				msg.Metadata["traceparent"], msg.Metadata["baggage"] = text, text
			}
			calls := 0
			_, err := tiered.Middleware(func(*message.Message) ([]*message.Message, error) { calls++; return nil, nil })(msg)
			require.NoError(t, err)
			assert.Equal(t, 1, calls)
			s := r.only("process ")
			assert.Empty(t, s.Links)
			assert.False(t, s.Parent.IsValid())
			wait := r.only("wait")
			assert.Equal(t, wait.StartTime, wait.EndTime, "a clock that is ahead makes no negative time")
			assert.Equal(t, map[string]string{"watermill.retry.handler": "", "watermill.retry.failures": "1"},
				attributesOf(wait.Attributes), "an app without a router")
		})
	}
}

// A message that is not sampled does not pay for the trace context of its attempt before.
func TestTracesReadThePreviousAttemptWhereItIsUsed(t *testing.T) {
	r := newRecorder(t, sdktrace.WithSampler(sdktrace.NeverSample()))
	parent, span := r.start("checkout")
	defer span.End()
	of := traceObserver(r, Config{}, backend.Observed{})
	cost := func(traceparent string) float64 {
		arrival := retry.Event{Context: context.Background(), Metadata: order(parent).Metadata}
		arrival.Record.Traceparent = traceparent
		return testing.AllocsPerRun(100, func() { of.Begin(arrival) })
	}
	assert.Equal(t, cost(""), cost("00-"+strings.Repeat("a", 32)+"-"+strings.Repeat("b", 16)+"-01"))
}

// TestTwoObservers: each has its own spans, and the second finds the span of the first in the context.
func TestTwoObservers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := newRecorder(t), newRecorder(t)
		app := newApp(t, first, func(*message.Message) error { return errDown })
		app.Observe(tracing{tracers: second})
		app.Send("orders", message.NewMessage("order-1", nil)).DeadLettered(retry.DeadReasonExhausted)
		require.Len(t, first.named("process orders"), 3)
		require.Len(t, second.named("process orders"), 3)
		for i, s := range second.named("process orders") {
			assert.Equal(t, first.named("process orders")[i].SpanContext.SpanID(), s.Parent.SpanID())
		}
	})
}

// TestOuterSpanIsTheParent: the span of a tracing middleware outside of the retry middleware.
func TestOuterSpanIsTheParent(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	tiered := newRetry(t, r, nil)
	ctx, producer := r.start("checkout")
	producer.End()
	msg := order(ctx)
	outer, span := r.start("receive")
	msg.SetContext(outer)
	_, err := tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		_, inner := r.Tracer("app").Start(msg.Context(), "inside")
		inner.End()
		return nil, nil
	})(msg)
	require.NoError(t, err)
	span.End()
	attempt := r.only("process ")
	assert.Equal(t, span.SpanContext().SpanID(), attempt.Parent.SpanID())
	assert.Equal(t, map[string]string{"producer": idOf(producer.SpanContext())}, linksOf(attempt))
	assert.Equal(t, attempt.SpanContext.SpanID(), r.only("inside").Parent.SpanID(), "the handler's own spans are inside of the attempt")
}

// TestLogFields: the lines of the middleware lead to the attempt.
func TestLogFields(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	hooks := traceObserver(r, Config{}, backend.Observed{})
	ctx := hooks.Begin(retry.Event{Context: t.Context(), MessageUUID: "1"})
	span := trace.SpanContextFromContext(ctx)
	assert.Equal(t, map[string]any{"trace_id": span.TraceID().String(), "span_id": span.SpanID().String()}, map[string]any(hooks.LogFields(ctx)))
	hooks.Event(retry.Event{Context: ctx, Outcome: retry.Processed})
	assert.Empty(t, hooks.LogFields(t.Context()))
	assert.Empty(t, hooks.Traceparent(t.Context()))

}

// TestConsumerGroup: it is known from the queue of the handler. The spans of each handler of a topic have its name.
func TestConsumerGroup(t *testing.T) {
	t.Parallel()
	health := retry.Health{Subscriptions: []retry.SubscriptionHealth{
		{Name: "billing", Topic: "orders", Queue: "orders_eu"}, {Name: "stock", Topic: "orders", Queue: "orders"},
	}}
	r := newRecorder(t)
	hooks := traceObserver(r, Config{}, backend.Observed{System: "rabbitmq", Health: func() retry.Health { return health }})
	groups := map[string]string{}
	for _, handler := range []string{"billing", "stock", "other"} {
		ctx := hooks.Begin(retry.Event{Context: t.Context(), Topic: "orders", Handler: handler, MessageUUID: "1"})
		hooks.Event(retry.Event{Context: ctx, Outcome: retry.Processed})
	}
	for _, s := range r.named("process orders") {
		attributes := attributesOf(s.Attributes)
		groups[attributes["watermill.retry.handler"]] = attributes["messaging.consumer.group.name"]
	}
	assert.Equal(t, map[string]string{"billing": "eu", "stock": "", "other": ""}, groups)
}

// TestUnsampledAttempts: they make no further spans, and the record still has their trace.
func TestUnsampledAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t, sdktrace.WithSampler(sdktrace.NeverSample()))
		app := newApp(t, r, func(*message.Message) error { return errDown })
		story := app.Send("orders", message.NewMessage("order-1", nil)).DeadLettered(retry.DeadReasonExhausted)
		assert.Empty(t, r.names())
		record, _ := retry.ReadRecord(story.DeadLetter().Metadata)
		assert.True(t, strings.HasSuffix(record.Traceparent, "-00"), record.Traceparent)
	})
}

// TestUnsampledAttemptsAreCheap: half of the allocations, or more, are those of OpenTelemetry.
func TestUnsampledAttemptsAreCheap(t *testing.T) {
	never := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	plain, ofProducer := message.NewMessage("1", nil), message.NewMessage("1", nil)
	ofProducer.Metadata["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	for name, test := range map[string]struct {
		tracers trace.TracerProvider
		msg     *message.Message
		most    float64
	}{
		"noop":               {noop.NewTracerProvider(), plain, 5},
		"without a producer": {never, plain, 7},
		"with a producer":    {never, ofProducer, 10},
	} {
		hooks := traceObserver(test.tracers, Config{}, backend.Observed{System: "rabbitmq"})
		allocations := testing.AllocsPerRun(100, func() {
			ctx := hooks.Begin(retry.Event{Context: t.Context(), Topic: "orders", Handler: "billing", Metadata: test.msg.Metadata, MessageUUID: test.msg.UUID})
			hooks.Event(retry.Event{Context: ctx, Outcome: retry.Processed})
		})
		t.Logf("%s: %.0f allocations", name, allocations)
		assert.LessOrEqual(t, allocations, test.most, name)
	}
}
