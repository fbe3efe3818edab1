package observe

import (
	"context"
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

type bothKey struct{}

// spansOf is an observer that keeps which methods are called.
type spansOf struct {
	backend.NopObserver
	calls []string
}

func (s *spansOf) Begin(a retry.Event) context.Context {
	s.calls = append(s.calls, "Begin")
	return context.WithValue(a.Context, bothKey{}, "span")
}

func (s *spansOf) Event(retry.Event) { s.calls = append(s.calls, "Event") }

func (s *spansOf) Produced(context.Context, []*message.Message) {
	s.calls = append(s.calls, "Produced")
}

func (s *spansOf) Traceparent(context.Context) string {
	s.calls = append(s.calls, "Traceparent")
	return "of the span"
}

func (s *spansOf) LogFields(context.Context) watermill.LogFields {
	return watermill.LogFields{"span": true}
}

// TestTheSpansAreAroundTheMetrics: they begin first, and their Event comes last, also after a panic of the metrics.
func TestTheSpansAreAroundTheMetrics(t *testing.T) {
	t.Parallel()
	var spans spansOf
	for _, counted := range []*flights{nil, newFlights(10)} {
		spans.calls = nil
		both := &measured{Observer: &spans, flights: counted} // without metrics, so that they panic
		ctx := both.Begin(retry.Event{Context: context.Background()})
		assert.Equal(t, "span", ctx.Value(bothKey{}))
		if counted != nil {
			assert.Equal(t, map[labels]float64{{}: 1}, maps.Collect(counted.counts.each(inFlight)))
		}
		assert.Panics(t, func() { both.Event(retry.Event{Context: ctx}) })
		both.Produced(ctx, nil)
		assert.Equal(t, "of the span", both.Traceparent(ctx))
		assert.Equal(t, watermill.LogFields{"span": true}, both.LogFields(ctx))
		assert.Equal(t, []string{"Begin", "Event", "Produced", "Traceparent"}, spans.calls)
	}
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
	all.addTo(got, []Metric{deliveries})
	values := map[labels]float64{}
	for of, value := range got.each(deliveries) {
		values[of] = value
	}
	assert.Equal(t, map[labels]float64{{"orders", "a"}: 5, {"orders", "b"}: 4, {other, other}: 5}, values)
}
