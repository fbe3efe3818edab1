package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	trace      = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	otherTrace = "00-11111111111111111111111111111111-2222222222222222-01"
)

// beginKey is the key of what the Begin of a witness adds to the context: the number of the call.
type beginKey struct{ witness string }

// A witness is an Observer that keeps what it gets.
type witness struct {
	backend.NopObserver
	name      string
	traces    string // what Traceparent returns
	arrivals  []retry.Event
	events    []retry.Event
	produced  []string
	published []backend.Published
}

func (w *witness) Begin(a retry.Event) context.Context {
	w.arrivals = append(w.arrivals, a)
	return context.WithValue(a.Context, beginKey{w.name}, len(w.arrivals))
}

func (w *witness) Event(e retry.Event) { w.events = append(w.events, e) }

func (w *witness) Produced(ctx context.Context, produced []*message.Message) {
	for _, msg := range produced {
		msg.Metadata.Set("produced by", fmt.Sprint(ctx.Value(beginKey{w.name})))
		w.produced = append(w.produced, msg.UUID)
	}
}

func (w *witness) Traceparent(ctx context.Context) string {
	if ctx.Value(beginKey{w.name}) == nil {
		return "not the context of Begin"
	}
	return w.traces
}

func (w *witness) LogFields(ctx context.Context) watermill.LogFields {
	return watermill.LogFields{"call_" + w.name: ctx.Value(beginKey{w.name})}
}

func (w *witness) Published(p backend.Published) { w.published = append(w.published, p) }

// breaks is an Observer of which one method breaks.
type breaks struct {
	method string
	how    func()
}

func (b breaks) in(method string) {
	if b.method == method {
		b.how()
	}
}

func (b breaks) Attach(backend.Observed) (backend.Observer, error) { b.in("Attach"); return nil, nil }
func (b breaks) Begin(retry.Event) context.Context                 { b.in("Begin"); return nil }
func (b breaks) Event(retry.Event)                                 { b.in("Event") }
func (b breaks) Produced(context.Context, []*message.Message)      { b.in("Produced") }
func (b breaks) Traceparent(context.Context) string                { b.in("Traceparent"); return "" }
func (b breaks) LogFields(context.Context) watermill.LogFields     { b.in("LogFields"); return nil }
func (b breaks) Published(backend.Published)                       { b.in("Published") }

// refuses is an Observer that cannot be attached.
type refuses struct{ backend.NopObserver }

func (refuses) Attach(backend.Observed) (backend.Observer, error) {
	return nil, errors.New("the registry has one")
}

// observedBy attaches observers to the middleware.
func observedBy(logger watermill.LoggerAdapter, all ...retry.Observer) func(*settings) {
	return func(c *settings) {
		if c.Observers == nil {
			c.Observers = &backend.Observers{}
		}
		for _, o := range all {
			c.Observers.Attach(o, backend.Observed{System: "test", Logger: logger})
		}
	}
}

// A second call with the same message, as by a middleware outside, does not begin within the first one. The context of a message that its
// handler has settled stays: the subscriber may be reading it.
func TestMessageHasItsContextBackAfterTheCall(t *testing.T) {
	w := &witness{name: "w"}
	tiered, _ := setup(t, observedBy(nil, w))
	msg := messageOf(routed)
	for range 2 {
		handles(t, tiered.Middleware(succeed), msg)
		assert.Equal(t, routed, msg.Context())
	}
	handles(t, tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		msg.Ack()
		return nil, nil
	}), msg)
	assert.NotEqual(t, routed, msg.Context())
	assert.Len(t, w.arrivals, 3)
	for _, a := range w.arrivals {
		assert.Nil(t, a.Context.Value(beginKey{"w"}))
	}
}

// Each observer gets the context of the one before.
func TestObserversAreCalledOneAfterTheOther(t *testing.T) {
	first, second := &witness{name: "first"}, &witness{name: "second", traces: trace}
	tiered, sent := setup(t, observedBy(nil, first, second))
	out := message.NewMessage("out", nil)
	produced, err := tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		assert.Equal(t, []any{1, 1}, []any{msg.Context().Value(beginKey{"first"}), msg.Context().Value(beginKey{"second"})})
		return []*message.Message{out}, nil
	})(messageOf(routed))
	require.NoError(t, err)
	require.Equal(t, []*message.Message{out}, produced)
	assert.Equal(t, message.Metadata{"produced by": "1"}, out.Metadata)
	handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
	for _, w := range []*witness{first, second} {
		assert.Len(t, w.arrivals, 2)
		assert.Equal(t, []string{"out"}, w.produced)
		require.Len(t, w.events, 2)
		assert.Equal(t, []retry.Outcome{retry.Processed, retry.Retried}, []retry.Outcome{w.events[0].Outcome, w.events[1].Outcome})
		assert.Equal(t, []any{2, 2}, []any{w.events[1].Context.Value(beginKey{"first"}), w.events[1].Context.Value(beginKey{"second"})})
	}
	assert.Equal(t, 2, second.arrivals[1].Context.Value(beginKey{"first"}))
	assert.Nil(t, first.arrivals[1].Context.Value(beginKey{"second"}))
	assert.Equal(t, trace, sent.only(t).msg.Metadata[recordkey.Traceparent], "the first one that traces")
}

func TestTraceparentOfTheLastFailureIsInTheRecord(t *testing.T) {
	of := func(traceparent string) *retry.Record { return &retry.Record{Topic: topic, Traceparent: traceparent} }
	tracing := func(text string) func(*settings) { return observedBy(nil, &witness{name: "a", traces: text}) }
	for name, row := range map[string]struct {
		config func(*settings)
		record *retry.Record // nil: the message has not failed before
		want   string
	}{
		"first failure":        {tracing(trace), nil, trace},
		"later failure":        {tracing(trace), of(otherTrace), trace},
		"no trace any more":    {tracing(""), of(otherTrace), otherTrace},
		"no observer any more": {observedBy(nil), of(otherTrace), otherTrace},
		"nothing traces":       {tracing(""), nil, ""},
		"too long":             {tracing(strings.Repeat("0", 1000)), of(otherTrace), ""},
		"not valid UTF-8":      {tracing(strings.Repeat("0", 127) + "ü"), of(otherTrace), ""},
		"long, in the record":  {observedBy(nil), of(strings.Repeat("x", 1<<20)), ""},
		"of another topic":     {tracing(""), &retry.Record{Topic: "other", Traceparent: otherTrace}, ""},
	} {
		for _, failures := range []int{1, 4} { // a copy, and a dead letter
			t.Run(fmt.Sprint(name, " ", failures), func(t *testing.T) {
				tiered, sent := setup(t, row.config)
				msg := messageOf(routed)
				if row.record != nil {
					row.record.Failures = failures
					row.record.Write(msg.Metadata)
				}
				handles(t, tiered.Middleware(failing(errDown)), msg)
				assert.Equal(t, row.want, sent.only(t).msg.Metadata[recordkey.Traceparent])
				assert.Equal(t, row.want, sent.record(t).Traceparent)
			})
		}
	}
}

// The copy of a failure comes back late, until its handler is called.
func TestRetryHasItsTierAndItsLateness(t *testing.T) {
	const late = 1500 * time.Millisecond
	byTiers := func(wait bool) func(*settings) { return func(c *settings) { c.TiersWait = wait } }
	for name, row := range map[string]struct {
		err    error
		change func(*settings)
		want   time.Duration
	}{
		"schedule":                         {errDown, byTiers(false), time.Second},
		"schedule, tiers wait":             {errDown, byTiers(true), time.Second},
		"requested tier":                   {backoff.RetryAfter(errDown, time.Minute), byTiers(false), time.Minute},
		"requested delay":                  {backoff.RetryAfter(errDown, 7*time.Second), byTiers(false), time.Minute}, // it waits there, and is due before
		"requested delay, beyond all":      {backoff.RetryAfter(errDown, time.Hour), byTiers(false), time.Minute},
		"requested delay, tiers wait":      {backoff.RetryAfter(errDown, 5500*time.Millisecond), byTiers(true), 5 * time.Second},
		"requested delay, below the least": {backoff.RetryAfter(errDown, time.Millisecond), byTiers(true), time.Second},
	} {
		bubble(t, name, func(t *testing.T) {
			w := &witness{name: "a"}
			tiered, sent := setup(t, row.change, observedBy(nil, w))
			handles(t, tiered.Middleware(failing(row.err)), messageOf(routed))
			last := func() retry.Event { return w.events[len(w.events)-1] }
			for last().Outcome != retry.Recovered {
				time.Sleep(time.Until(last().Record.DueAt) + late)
				handles(t, tiered.Middleware(succeed), redelivered(routed, sent.last()))
			}
			arrived, failed := w.arrivals[len(w.arrivals)-1], w.events[0]
			assert.Equal(t, []backoff.Tier{backoff.Tier(row.want), failed.Tier}, []backoff.Tier{arrived.Arrived, arrived.Arrived})
			assert.InDelta(t, late, arrived.Lateness, float64(time.Millisecond)) // the record has milliseconds
			assert.Equal(t, 1, arrived.Record.Failures)
			assert.Equal(t, []any{arrived.Arrived, arrived.Lateness}, []any{last().Arrived, last().Lateness})
			assert.Zero(t, failed.Arrived)
			assert.Zero(t, failed.Lateness)
		})
	}
}

// The tier is a label of a metric: whatever a record has, it must be one of few. One forged due time must not outweigh all
// other messages in the sum of a histogram.
func TestTierOfArrivalIsOneOfTheConfiguration(t *testing.T) {
	const day = 24 * time.Hour
	for name, change := range map[string]func(*settings){
		"plain":  func(*settings) {},
		"tiers":  tiersWait,
		"jitter": func(c *settings) { c.Policy.Jitter, c.TiersWait = 0.3, true },
		"extra":  func(c *settings) { c.Policy.ExtraTiers = backoff.Ladder(time.Second, time.Hour) },
	} {
		bubble(t, name, func(t *testing.T) {
			now := time.Now()
			far := []time.Time{
				{}, time.Unix(0, 0), now, now.Add(-time.Hour), now.Add(time.Nanosecond), now.Add(1234567 * time.Microsecond), now.Add(time.Hour),
				now.Add(-29 * day), now.Add(-31 * day), now.Add(backoff.MaxDelay), now.Add(-backoff.MaxDelay),
				time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC),
			}
			w := &witness{name: "a"}
			config := configOf(&recorder{})
			change(&config)
			tiered, _ := setup(t, change, observedBy(nil, w))
			tiers, used := config.Tiers(), map[backoff.Tier]bool{}
			for _, due := range far {
				for _, failed := range far {
					msg := carrying(retry.Record{Failures: 1, Topic: topic, DueAt: due, FirstFailedAt: failed, LastFailedAt: failed})
					record, _ := retry.ReadRecord(msg.Metadata)
					handles(t, tiered.Middleware(succeed), msg)
					arrival, event := w.arrivals[len(w.arrivals)-1], w.events[len(w.arrivals)-1]
					require.Equal(t, []any{arrival.Arrived, arrival.Lateness}, []any{event.Arrived, event.Lateness})
					late, age := now.Sub(record.DueAt), now.Sub(record.FirstFailedAt)
					if age > backoff.MaxDelay {
						age = 0 // none, or forged
					}
					require.Equal(t, age, event.Age)
					if record.DueAt.IsZero() || record.LastFailedAt.IsZero() || late > 30*day {
						require.Zero(t, arrival.Arrived)
						require.Zero(t, arrival.Lateness)
						continue
					}
					require.Equal(t, max(late, 0), arrival.Lateness)
					require.Contains(t, tiers, arrival.Arrived)
					used[arrival.Arrived] = true
				}
			}
			assert.Greater(t, len(used), 1)
		})
	}
}

// Observers are code of another module. A panic of each of them is logged once, and changes nothing.
func TestPanicOfAnObserverChangesNothing(t *testing.T) {
	for _, method := range []string{"Begin", "Event", "Produced", "Traceparent", "LogFields", "Published"} {
		t.Run(method, func(t *testing.T) {
			logs := &logRecorder{}
			bad, good := breaks{method, func() { panic("broken hook") }}, &witness{name: "good"}
			var observers *backend.Observers
			tiered, sent, s, own := setupBound(t, observedBy(logs, bad, good), func(c *settings) { observers = c.Observers })
			for range 3 {
				produced, err := tiered.Middleware(producing(1))(messageOf(s.bind(routed)))
				require.NoError(t, err)
				require.Len(t, produced, 1)
				handles(t, tiered.Middleware(failing(errDown)), messageOf(s.bind(routed)))
				observers.Published(backend.Published{Topic: "1s.orders", Messages: 1})
			}
			assert.Len(t, sent.copies, 3)
			assert.Equal(t, 1, logs.lines("The method "+method+" of an observer panicked"), logs.String())
			assert.Contains(t, logs.String(), "broken hook")
			assert.Equal(t, 3, own.lines("message waits for its retry"))
			assert.Len(t, good.arrivals, 6, "the other observer sees everything")
			assert.Len(t, good.events, 6)
			assert.Len(t, good.produced, 3)
			assert.Len(t, good.published, 3)
		})
	}
}

func TestObserverThatCannotBeAttachedIsLoggedOnce(t *testing.T) {
	for want, observer := range map[string]retry.Observer{
		"the registry has one":   refuses{},
		"broken attach":          breaks{"Attach", func() { panic("broken attach") }},
		"the observer is nil":    nil,
		"invalid memory address": (*witness)(nil),
	} {
		t.Run(want, func(t *testing.T) {
			logs, w := &logRecorder{}, &witness{name: "a"}
			tiered, sent := setup(t, observedBy(logs, observer, w))
			for range 3 {
				handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
			}
			assert.Len(t, sent.copies, 3)
			assert.Len(t, w.events, 3)
			assert.Equal(t, 1, strings.Count(logs.String(), "\n"), logs.String())
			assert.Contains(t, logs.String(), "Cannot observe the connection")
			assert.Contains(t, logs.String(), want)

			tiered, _ = setup(t, observedBy(nil, observer)) // without a logger
			handles(t, tiered.Middleware(succeed), messageOf(routed))
		})
	}
	var none *backend.Observers
	assert.False(t, none.Observes())
	none.Published(backend.Published{})
	assert.False(t, (&backend.Observers{}).Observes())
}

// A delivery has the observers that were attached when it began.
func TestObserverIsAttachedWhileMessagesAreInFlight(t *testing.T) {
	var observers backend.Observers
	tiered, _ := setup(t, func(c *settings) { c.Observers, c.Publisher = &observers, discard{} })
	begun, goOn := make(chan struct{}), make(chan struct{})
	early := &witness{name: "early"}
	var before sync.WaitGroup
	before.Go(func() {
		_, _ = tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
			close(begun)
			<-goOn
			return nil, errDown
		})(messageOf(routed))
	})
	<-begun
	observers.Attach(early, backend.Observed{})
	close(goOn)
	before.Wait()
	assert.Empty(t, early.arrivals)
	assert.Empty(t, early.events, "it would be an outcome without a begin")

	all := make([]*witness, 8)
	var attaching sync.WaitGroup
	for i := range all {
		all[i] = &witness{name: fmt.Sprint(i)}
		attaching.Go(func() { observers.Attach(all[i], backend.Observed{}) })
	}
	for range 8 { // deliveries begin and end beside it
		handles(t, tiered.Middleware(succeed), messageOf(routed))
	}
	attaching.Wait()
	handles(t, tiered.Middleware(succeed), messageOf(routed))
	for _, w := range append(all, early) {
		assert.NotEmpty(t, w.arrivals, w.name)
		assert.Len(t, w.events, len(w.arrivals), w.name)
	}
	assert.Len(t, early.events, 9)
}
