package middleware_test

import (
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

type hooks retrymw.Hooks

func (h hooks) Attach(retrymw.Observed) (retrymw.Hooks, error) { return retrymw.Hooks(h), nil }

// TestObserversGetOneLastEvent: also where a function of the app ends the goroutine before the outcome is known.
func TestObserversGetOneLastEvent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*retrymw.TieredRetryConfig)
		want   retrymw.Outcome
	}{
		"retried": {func(*retrymw.TieredRetryConfig) {}, retrymw.Retried},
		"the publisher ends the goroutine": {func(c *retrymw.TieredRetryConfig) {
			c.Publisher = &recorder{fail: func(int) error { runtime.Goexit(); return nil }}
		}, retrymw.GivenBack},
		"a rule ends the goroutine": {func(c *retrymw.TieredRetryConfig) {
			c.Rules = []retrymw.Rule{{If: func(retrymw.Record, error) bool { runtime.Goexit(); return true }, Then: retrymw.Discard()}}
		}, retrymw.GivenBack},
		"the text ends the goroutine": {func(c *retrymw.TieredRetryConfig) {
			c.RedactReason = func(string, error) string { runtime.Goexit(); return "" }
		}, retrymw.GivenBack},
		"Observe ends the goroutine": {func(c *retrymw.TieredRetryConfig) {
			c.Observe = func(retrymw.Event) { runtime.Goexit() }
		}, retrymw.Retried},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []retrymw.Outcome
			var observers retrymw.Observers
			observers.Attach(hooks{Event: func(e retrymw.Event) { got = append(got, e.Outcome) }}, retrymw.Observed{})
			retry, _ := setup(t, func(c *retrymw.TieredRetryConfig) { c.Observers = &observers; test.change(c) })
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = retry.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errDown })(message.NewMessage("1", nil))
			}()
			<-done
			assert.Equal(t, []retrymw.Outcome{test.want}, got)
		})
	}
}
