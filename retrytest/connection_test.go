package retrytest_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

func TestHandlersHaveSchedulesAndObserversOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		observe := func(name string) func(*middleware.TieredRetryConfig) {
			return func(c *middleware.TieredRetryConfig) {
				c.Observe = func(e retry.Event) { events = append(events, fmt.Sprint(name, " ", e.Handler, " ", e.Outcome)) }
			}
		}
		app := retrytest.NewWithConfig(t, retrytest.Config{Schedule: backoff.Schedule{time.Second}, Middleware: observe("default")})
		app.AddConsumerHandler(app.Router, "billing", "orders", failing(errDown))
		app.AddConsumerHandler(app.Router, "mailing", "mails", always(errDown), middleware.HandlerOptions{
			Schedule: backoff.Schedule{time.Minute, time.Hour}, Middleware: observe("own"), Concurrency: 16,
			OrderKey: func(*message.Message) string { return "key" },
		})
		app.Send("orders", order("1")).RetriedAt(time.Second).Processed()
		app.Send("mails", order("1")).RetriedAt(time.Minute, 61*time.Minute).DeadLettered(retry.DeadReasonExhausted)
		assert.Equal(t, []string{
			"default billing retried", "default billing recovered",
			"own mailing retried", "own mailing retried", "own mailing dead-lettered",
		}, events)

		app.AddConsumerHandler(app.Router, "printing", "prints", failing(errDown), middleware.HandlerOptions{Schedule: backoff.Schedule{time.Millisecond}})
		app.Send("prints", order("1")).RetriedAt(time.Millisecond).Processed()
	})
}

// The tiers of a handler are those of its changed configuration.
func TestScheduleIsChangedByTheMiddlewareOption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := retrytest.New(t, backoff.Schedule{time.Second})
		app.AddConsumerHandler(app.Router, "billing", "orders", failing(errDown), middleware.HandlerOptions{
			Middleware: func(c *middleware.TieredRetryConfig) { c.Schedule = backoff.Schedule{7 * time.Second} },
		})
		app.Send("orders", order("1")).RetriedAt(7 * time.Second).Processed()
	})
	text, fatal := failureOf(func(t testing.TB) {
		app := retrytest.New(t, backoff.Schedule{time.Millisecond})
		app.AddConsumerHandler(app.Router, "billing", "orders", failing(), middleware.HandlerOptions{
			Middleware: func(c *middleware.TieredRetryConfig) { c.Schedule = backoff.Schedule{time.Hour} },
		})
	})
	assert.True(t, fatal)
	assert.Contains(t, text, "this schedule takes 1h of real time, more than 10s")
}

// Without a group the handlers of a topic share its messages, as those of one queue do.
func TestHandlersOfOneGroupShareTheMessages(t *testing.T) {
	for _, group := range []string{"", "mail"} {
		synctest.Test(t, func(t *testing.T) {
			app := retrytest.New(t, backoff.Schedule{time.Second})
			for n := range 4 {
				app.AddConsumerHandler(app.Router, fmt.Sprint("mailing-", n), "orders", failing(errDown), inGroup(group))
			}
			app.AddConsumerHandler(app.Router, "billing", "orders", failing(), inGroup("bill"))
			for n := range 8 {
				story := app.Send("orders", order(fmt.Sprint(n)))
				story.Handler("billing").NeverRetried().Processed()
				story.Handler("mailing-0").RetriedAt(time.Second).Processed()
				attempts := story.Handler("mailing-0").Attempts()
				assert.Len(t, attempts, 2, "one of the four handlers gets the message, and one its retry")
			}
			assert.Len(t, app.Stories("orders"), 8)
		})
	}
}

func TestWrongOptionsEndTheTest(t *testing.T) {
	for want, options := range map[string][]middleware.HandlerOptions{
		"2 HandlerOptions were given":     {{}, {}},
		"Concurrency is -1":               {{Concurrency: -1}},
		"retry 1: delay 1ns is too short": {{Schedule: backoff.Schedule{1}}},
	} {
		t.Run(want, func(t *testing.T) {
			text, fatal := failureOf(func(t testing.TB) {
				app := retrytest.New(t, backoff.Schedule{time.Millisecond})
				app.AddConsumerHandler(app.Router, "billing", "orders", failing(), options...)
				app.Send("orders", order("1"))
			})
			assert.True(t, fatal)
			assert.Contains(t, text, want)
			assert.Contains(t, text, `handler "billing"`)

			added := false
			text, fatal = failureOf(func(t testing.TB) {
				app := retrytest.New(t, backoff.Schedule{time.Millisecond})
				app.AddHandler(app.Router, "billing", "orders", "invoices", message.PassthroughHandler, options...)
				added = true
			})
			assert.True(t, fatal)
			assert.Contains(t, text, want)
			assert.Contains(t, text, `retrytest: handler "billing": `)
			assert.False(t, added, "the failure is at the line that adds the handler")
		})
	}
	text, fatal := failureOf(func(t testing.TB) {
		app := retrytest.New(t, backoff.Schedule{time.Millisecond})
		app.AddConsumerHandler(app.Router, "billing", "orders", nil)
	})
	assert.True(t, fatal)
	assert.Contains(t, text, `retrytest: handler "billing": its function is nil`)
	app := retrytest.New(t, backoff.Schedule{time.Millisecond})
	_, err := app.Subscriber("")
	require.ErrorContains(t, err, "the name is empty")
	_, err = app.Subscriber("billing", middleware.HandlerOptions{Schedule: backoff.Schedule{time.Hour}})
	require.ErrorContains(t, err, "this schedule takes 1h of real time, more than 10s")
}

func TestHealthAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text, fatal := failureOf(func(tb testing.TB) {
			app := retrytest.New(tb, backoff.Schedule{time.Second})
			app.AddConsumerHandler(app.Router, "billing", "orders", failing())
			assert.Empty(t, app.Health().Subscriptions)
			app.Send("orders", order("1")).Processed()
			require.NoError(t, app.Health().Ready())
			assert.Len(t, app.Health().Subscriptions, 1)
			require.NoError(t, app.Close())
			require.NoError(t, app.Close())
			assert.Empty(t, app.Health().Subscriptions)
			app.Send("orders", order("2"))
		})
		assert.True(t, fatal)
		assert.Equal(t, "retrytest: the app is closed\n", text)
	})
}

func TestSubscriberThatIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := retrytest.New(t, backoff.Schedule{time.Second})
		subscriber := newSubscriber(app)
		messages, err := subscriber.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		require.NoError(t, subscriber.Close())
		_, open := <-messages
		assert.False(t, open)
		_, err = subscriber.Subscribe(t.Context(), "orders")
		require.ErrorContains(t, err, "the subscriber is closed")
	})
}
