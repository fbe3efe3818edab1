package observe

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestJoinedHooksAreNested: the outer ones begin first, and their Event comes last.
func TestJoinedHooksAreNested(t *testing.T) {
	t.Parallel()
	var calls []string
	type key struct{}
	hooks := func(name string) retry.Observer {
		call := func(hook string) { calls = append(calls, name+" "+hook) }
		return eventtest.Hooks{
			OnBegin: func(a retry.Arrival) context.Context {
				before, _ := a.Context.Value(key{}).(string)
				call("Begin after " + before)
				return context.WithValue(a.Context, key{}, name)
			},
			OnEvent:       func(retry.Event) { call("Event") },
			OnPublished:   func(retry.Published) { call("Published") },
			OnProduced:    func(context.Context, []*message.Message) { call("Produced") },
			OnTraceparent: func(context.Context) string { call("Traceparent"); return name },
			OnLogFields:   func(context.Context) watermill.LogFields { return watermill.LogFields{name: true} },
		}
	}
	run := func(h retry.Observer) {
		ctx := h.Begin(retry.Arrival{Context: context.Background()})
		h.Event(retry.Event{Context: ctx})
		h.Published(retry.Published{})
		h.Produced(ctx, nil)
		_ = h.Traceparent(ctx)
	}
	both := joined{outer: hooks("outer"), inner: hooks("inner")}
	run(both)
	assert.Equal(t, []string{
		"outer Begin after ", "inner Begin after outer", "inner Event", "outer Event", "inner Published", "outer Published",
		"outer Produced", "inner Produced", "outer Traceparent",
	}, calls)
	assert.Equal(t, watermill.LogFields{"outer": true, "inner": true}, both.LogFields(context.Background()))
}

func TestLabelText(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "short": "short", "12345678": "12345678", "123456789": "12345678", "1234567é": "1234567", "123456é": "123456é",
		"12345678é": "12345678", "1234世界": "1234世", "12345世界": "12345世", "bad\xff": "bad\uFFFD", "1234567\xff9": "1234567\uFFFD",
		"1234\xff\xff\xff\xff\xff": "1234\uFFFD",
	} {
		assert.Equal(t, want, labelText(text, 8), "%q", text)
	}
	assert.Zero(t, testing.AllocsPerRun(100, func() { _ = labelText("a longer text that is cut", 8) }))
}

// TestTotalsAreBounded: what has ended keeps its place.
func TestTotalsAreBounded(t *testing.T) {
	t.Parallel()
	all := newTotals(2)
	for i, handler := range []string{"a", "b", "c", "d"} {
		all.see(deliveries, float64(5-i), labels{"orders", handler})
		all.done()
	}
	got := newFigures(10)
	all.addTo(got, deliveries)
	assert.Equal(t, map[labels]float64{{"orders", "a"}: 5, {"orders", "b"}: 4, {other, other}: 5}, got.all[deliveries.Name].of)
}

// TestAFilledTableTakesNoLock: also that of keys which came one after the other.
func TestAFilledTableTakesNoLock(t *testing.T) {
	t.Parallel()
	made := 0
	table := newTable(100, func(key int) int { made++; return 2 * key }, func(int) int { return -1 })
	for range 3 {
		for key := range 150 {
			want := 2 * key
			if key >= 100 {
				want = -2
			}
			assert.Equal(t, want, table.get(key))
		}
	}
	assert.Equal(t, 101, made)
	assert.Len(t, *table.read.Load(), 100)
}
