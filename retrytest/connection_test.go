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
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

func TestHandlersHavePoliciesOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		app := retrytest.New(t, backoff.Schedule{time.Second})
		app.Observe(eventtest.OnEvent(func(e retry.Event) { events = append(events, fmt.Sprint(e.Handler, " ", e.Outcome)) }))
		app.AddConsumerHandler(app.Router, "billing", "orders", failing(errDown))
		app.AddConsumerHandler(app.Router, "mailing", "mails", always(errDown), retry.Options{
			Policy: &retry.Policy{Schedule: backoff.Schedule{time.Minute, time.Hour}}, Concurrency: 16,
			Order: retry.Order{Key: func(*message.Message) string { return "key" }},
		})
		app.Send("orders", order("1")).RetriedAt(time.Second).Processed()
		app.Send("mails", order("1")).RetriedAt(time.Minute, 61*time.Minute).DeadLettered(retry.DeadReasonExhausted)
		assert.Equal(t, []string{
			"billing retried", "billing recovered", "mailing retried", "mailing retried", "mailing dead-lettered",
		}, events)

		app.AddConsumerHandler(app.Router, "printing", "prints", failing(errDown), retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{time.Millisecond}}})
		app.Send("prints", order("1")).RetriedAt(time.Millisecond).Processed()
	})
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

// The failure is at the line that adds the handler.
func TestWrongOptionsEndTheTest(t *testing.T) {
	long := &retry.Policy{Schedule: backoff.Schedule{time.Hour}}
	for want, options := range map[string][]retry.Options{
		"2 Options were given":                                 {{}, {}},
		"Concurrency is -1":                                    {{Concurrency: -1}},
		"retry 1: delay 1ns is too short":                      {{Policy: &retry.Policy{Schedule: backoff.Schedule{1}}}},
		"this schedule takes 1h of real time, more than 10s":   {{Policy: long}},
		"its function is nil: pass the function that handles ": nil,
	} {
		t.Run(want, func(t *testing.T) {
			bill, pass := failing(), message.HandlerFunc(message.PassthroughHandler)
			if options == nil {
				bill, pass = nil, nil
			}
			for _, add := range []func(app *retrytest.App){
				func(app *retrytest.App) { app.AddConsumerHandler(app.Router, "billing", "orders", bill, options...) },
				func(app *retrytest.App) {
					app.AddHandler(app.Router, "billing", "orders", "invoices", pass, options...)
				},
			} {
				text, fatal := failureOf(func(t testing.TB) { add(retrytest.New(t, backoff.Schedule{time.Millisecond})) })
				assert.True(t, fatal)
				assert.Contains(t, text, want)
				assert.Contains(t, text, `retrytest: handler "billing": `)
			}
		})
	}
	app := retrytest.New(t, backoff.Schedule{time.Millisecond})
	_, err := app.Subscriber("")
	require.ErrorContains(t, err, "the name is empty")
	_, err = app.Subscriber("billing", retry.Options{Policy: long})
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
