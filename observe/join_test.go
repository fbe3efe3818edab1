package observe

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/middleware"
)

// TestJoinedHooksAreNested: the outer ones begin first, and their Event comes last.
func TestJoinedHooksAreNested(t *testing.T) {
	t.Parallel()
	var calls []string
	type key struct{}
	hooks := func(name string) middleware.Hooks {
		call := func(hook string) { calls = append(calls, name+" "+hook) }
		return middleware.Hooks{
			Begin: func(a middleware.Arrival) context.Context {
				before, _ := a.Context.Value(key{}).(string)
				call("Begin after " + before)
				return context.WithValue(a.Context, key{}, name)
			},
			Event:       func(middleware.Event) { call("Event") },
			Published:   func(middleware.Published) { call("Published") },
			Produced:    func(context.Context, []*message.Message) { call("Produced") },
			Traceparent: func(context.Context) string { call("Traceparent"); return name },
			LogFields:   func(context.Context) watermill.LogFields { return watermill.LogFields{name: true} },
		}
	}
	run := func(h middleware.Hooks) {
		ctx := h.Begin(middleware.Arrival{Context: context.Background()})
		h.Event(middleware.Event{Context: ctx})
		h.Published(middleware.Published{})
		h.Produced(ctx, nil)
		_ = h.Traceparent(ctx)
	}
	joined := join(hooks("outer"), hooks("inner"))
	run(joined)
	assert.Equal(t, []string{
		"outer Begin after ", "inner Begin after outer", "inner Event", "outer Event", "inner Published", "outer Published",
		"outer Produced", "inner Produced", "outer Traceparent",
	}, calls)
	assert.Equal(t, watermill.LogFields{"outer": true, "inner": true}, joined.LogFields(context.Background()))

	calls = nil
	run(join(hooks("only"), middleware.Hooks{}))
	run(join(middleware.Hooks{}, hooks("only")))
	assert.Len(t, calls, 10)
	assert.Equal(t, middleware.Hooks{}, join(middleware.Hooks{}, middleware.Hooks{}))
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
