package middleware_test

import (
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestObserversGetOneLastEvent: also where a function of the app ends the goroutine before the outcome is known.
func TestObserversGetOneLastEvent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*settings)
		want   retry.Outcome
	}{
		"retried": {func(*settings) {}, retry.Retried},
		"the publisher ends the goroutine": {func(c *settings) {
			c.Publisher = &recorder{fail: func(int) error { runtime.Goexit(); return nil }}
		}, retry.GivenBack},
		"a rule ends the goroutine": {func(c *settings) {
			c.Policy.Rules = []retry.Rule{{If: func(retry.Record, error) bool { runtime.Goexit(); return true }, Then: retry.Discard()}}
		}, retry.GivenBack},
		"the text ends the goroutine": {func(c *settings) {
			c.Policy.RedactReason = func(string, error) string { runtime.Goexit(); return "" }
		}, retry.GivenBack},
		"Observe ends the goroutine": {func(c *settings) {
			c.Observers.Attach(eventtest.OnEvent(func(retry.Event) { runtime.Goexit() }), retry.Observed{})
		}, retry.Retried},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []retry.Outcome
			var observers backend.Observers
			observers.Attach(eventtest.Hooks{OnEvent: func(e retry.Event) { got = append(got, e.Outcome) }}, retry.Observed{})
			tiered, _ := setup(t, func(c *settings) { c.Observers = &observers; test.change(c) })
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = tiered.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errDown })(message.NewMessage("1", nil))
			}()
			<-done
			assert.Equal(t, []retry.Outcome{test.want}, got)
		})
	}
}
