package retrytest_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

var errDown = errors.New("the bank is down")

// failing makes a handler that returns these errors one after the other, and then nil.
func failing(errs ...error) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		record, _ := retry.ReadRecord(msg.Metadata)
		if record.Failures < len(errs) {
			return errs[record.Failures]
		}
		return nil
	}
}

// always makes a handler that returns this error every time.
func always(err error) message.NoPublishHandlerFunc {
	return func(*message.Message) error { return err }
}

// nacks makes a handler that nacks its first messages, and then returns this error.
func nacks(times int, err error) message.NoPublishHandlerFunc {
	calls := 0
	return func(msg *message.Message) error {
		if calls++; calls > times {
			return nil
		}
		msg.Nack()
		return err
	}
}

func order(uuid string) *message.Message {
	msg := message.NewMessage(uuid, []byte{0, 0xff})
	msg.Metadata = message.Metadata{"trace": "abc"}
	return msg
}

// newSubscriber makes the subscriber of a handler.
func newSubscriber(app *retrytest.App, options ...retry.Options) message.Subscriber {
	subscriber, err := app.Subscriber("handlers", options...)
	if err != nil {
		panic(err)
	}
	return subscriber
}

// bubble is a subtest in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// inApp runs f in virtual time with an app that retries once.
func inApp(t *testing.T, f func(t *testing.T, app *retrytest.App)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, retrytest.New(t, backoff.Schedule{time.Second})) })
}

// inGroup are the options of a handler that gets every message.
func inGroup(name string) retry.Options { return retry.Options{Group: name} }

func TestStoryHasTheOutcomeOfTheHandler(t *testing.T) {
	schedule := backoff.Schedule{time.Second, 5 * time.Second, 10 * time.Minute}
	for _, test := range []struct {
		name    string
		handler message.NoPublishHandlerFunc
		assert  func(*testing.T, *retrytest.Story)
	}{
		{"processed at once", failing(), func(t *testing.T, s *retrytest.Story) {
			s.NeverRetried().Processed()
			assert.Len(t, s.Attempts(), 1)
			assert.Nil(t, s.DeadLetter())
		}},
		{"handled before", func(msg *message.Message) error {
			msgctx.Lookup(msg).Repeat()
			return nil
		}, func(t *testing.T, s *retrytest.Story) {
			assert.Equal(t, retry.Duplicate, s.NeverRetried().Attempts()[0].Outcome)
		}},
		{"dead-lettered as exhausted", always(errDown), func(t *testing.T, s *retrytest.Story) {
			s.RetriedAt(time.Second, 6*time.Second, 10*time.Minute+6*time.Second).DeadLettered(retry.DeadReasonExhausted)
			dead := s.DeadLetter()
			require.NotNil(t, dead)
			record, ok := retry.ReadRecord(dead.Metadata)
			require.True(t, ok)
			assert.Equal(t, 4, record.Failures)
			assert.Equal(t, "the bank is down", record.Reason)
			assert.Equal(t, "orders", record.Topic)
			assert.Equal(t, "billing", record.Handler)
			assert.Equal(t, message.Payload{0, 0xff}, dead.Payload)
			assert.Equal(t, "abc", dead.Metadata["trace"])
		}},
		{"a requested delay above the longest tier", failing(backoff.RetryAfter(errDown, 25*time.Hour), errDown), func(t *testing.T, s *retrytest.Story) {
			s.RetriedAt(25*time.Hour, 25*time.Hour+5*time.Second).Waited(25*time.Hour, 5*time.Second).Processed()
			assert.Equal(t, 25*time.Hour, s.Attempts()[0].Delay)
			assert.Equal(t, backoff.Tier(10*time.Minute), s.Attempts()[0].Tier)
		}},
		{"a handler that calls FailNow", func(msg *message.Message) error {
			if _, retried := retry.ReadRecord(msg.Metadata); !retried {
				new(testing.T).FailNow()
			}
			return nil
		}, func(t *testing.T, s *retrytest.Story) {
			s.RetriedAt(time.Second).Processed()
			assert.ErrorIs(t, s.Attempts()[0].Err, panics.ErrGoexit)
		}},
		{"a handler that sleeps", func(msg *message.Message) error {
			time.Sleep(2 * time.Second)
			return failing(errDown)(msg)
		}, func(t *testing.T, s *retrytest.Story) {
			s.RetriedAt(3 * time.Second).Waited(time.Second).Processed()
			assert.Equal(t, 2*time.Second, s.Attempts()[1].Duration)
		}},
		{"a handler that takes half an hour", func(*message.Message) error {
			time.Sleep(30 * time.Minute)
			return nil
		}, func(t *testing.T, s *retrytest.Story) { s.NeverRetried().Processed() }},
		{"a handler that acks and then fails", func(msg *message.Message) error {
			msg.Ack()
			time.Sleep(time.Second)
			return errDown
		}, func(t *testing.T, s *retrytest.Story) {
			s.NeverRetried()
			assert.Equal(t, retry.Settled, s.Attempts()[0].Outcome)
		}},
		{"a handler that nacks", nacks(2, nil), func(t *testing.T, s *retrytest.Story) {
			s.RetriedAt(0, 0).Processed()
			assert.Equal(t, retry.GivenBack, s.Attempts()[1].Outcome)
		}},
		{"a handler that nacks and then fails", nacks(2, errDown), func(t *testing.T, s *retrytest.Story) {
			s.RetriedAt(0, 0).Processed()
			for _, attempt := range s.Attempts()[:2] {
				assert.Equal(t, retry.Settled, attempt.Outcome)
				assert.ErrorIs(t, attempt.Err, errDown)
				assert.Zero(t, attempt.Record.Failures)
			}
			assert.Regexp(t, `settled +the bank is down`, s.String())
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				app := retrytest.New(t, schedule)
				app.AddConsumerHandler(app.Router, "billing", "orders", test.handler)
				test.assert(t, app.Send("orders", order("1")))
			})
		})
	}
}

func TestABlockedMessageIsNoDeadLetter(t *testing.T) {
	inApp(t, func(t *testing.T, app *retrytest.App) {
		blocking := retry.Order{Key: func(*message.Message) string { return "customer-7" }, Partitions: 1, Block: true}
		app.AddConsumerHandler(app.Router, "billing", "orders", always(errDown), retry.Options{Order: blocking})
		story := app.Send("orders", order("1")).RetriedAt(time.Second).Blocked(retry.DeadReasonExhausted)
		assert.Nil(t, story.DeadLetter())
		assert.Equal(t, 2, story.Attempts()[1].Record.Failures)
		assert.Regexp(t, `blocked as exhausted +the bank is down`, story.String())
	})
}

// The handler produces its own message, with the same UUID.
func TestProducedMessageHasItsOwnStory(t *testing.T) {
	inApp(t, func(t *testing.T, app *retrytest.App) {
		app.AddHandler(app.Router, "billing", "orders", "invoices", func(msg *message.Message) ([]*message.Message, error) {
			if err := failing(errDown)(msg); err != nil {
				return nil, err
			}
			return []*message.Message{msg, message.NewMessage("copy", nil)}, nil
		})
		app.AddConsumerHandler(app.Router, "mailing", "invoices", always(errDown))
		app.Send("orders", order("1")).RetriedAt(time.Second).Processed()

		produced := app.Produced("invoices")
		require.Len(t, produced, 2)
		assert.Equal(t, "1", produced[0].UUID)
		assert.Equal(t, message.Metadata{"trace": "abc"}, produced[0].Metadata, "the failure record is removed from produced messages")
		invoices := app.Stories("invoices")
		require.Len(t, invoices, 2)
		for _, story := range invoices {
			story.RetriedAt(time.Second).DeadLettered(retry.DeadReasonExhausted)
		}
		assert.Empty(t, app.Produced("orders"), "Send does not count as produced")
	})
}

// unable is a publisher of the app whose server refuses every message.
type unable struct{}

func (unable) Publish(string, ...*message.Message) error { return errDown }
func (unable) Close() error                              { return nil }

// The handler has succeeded, but the router cannot publish its message: a failure, as in production.
func TestAProducedMessageThatIsNotPublishedIsAFailure(t *testing.T) {
	inApp(t, func(t *testing.T, app *retrytest.App) {
		produce := func(msg *message.Message) ([]*message.Message, error) { return []*message.Message{msg.Copy()}, nil }
		app.Router.AddHandler("billing", "orders", newSubscriber(app), "invoices", unable{}, produce).AddMiddleware(
			app.Middleware)
		story := app.Send("orders", order("1")).RetriedAt(time.Second).DeadLettered(retry.DeadReasonExhausted)
		require.ErrorIs(t, story.Attempts()[0].Err, retry.ErrNotPublished)
		record, _ := retry.ReadRecord(story.DeadLetter().Metadata)
		assert.Equal(t, 2, record.Failures)
		assert.Equal(t, "abc", story.DeadLetter().Metadata["trace"])
	})
}

// A handler that panics has failed as one that returns an error.
func TestOwnRouterHasSettledMessages(t *testing.T) {
	for name, settle := range map[string]func(*message.Message) bool{"ack": (*message.Message).Ack, "nack": (*message.Message).Nack} {
		inApp(t, func(t *testing.T, app *retrytest.App) {
			router := message.NewDefaultRouter(nil)
			calls := 0
			router.AddConsumerHandler("billing", "orders", newSubscriber(app), func(msg *message.Message) error {
				if calls++; calls == 1 {
					settle(msg)
					panic(errDown)
				}
				return nil
			}).AddMiddleware(app.Middleware)
			app.Run(router)
			story := app.Send("orders", order("1"))
			assert.Equal(t, retry.Settled, story.Attempts()[0].Outcome, name)
			if name == "nack" {
				story.RetriedAt(0).Processed()
			}
		})
	}
}

// The message is processed again before its first handler returns.
func TestSendWaitsForAHandlerThatHasNacked(t *testing.T) {
	inApp(t, func(t *testing.T, app *retrytest.App) {
		subscriber, calls := newSubscriber(app), atomic.Int32{}
		for _, name := range []string{"billing-1", "billing-2"} {
			app.Router.AddConsumerHandler(name, "orders", subscriber, func(msg *message.Message) error {
				if calls.Add(1) == 1 {
					msg.Nack()
					time.Sleep(time.Minute)
					return errDown
				}
				return nil
			}).AddMiddleware(app.Middleware)
		}
		story := app.Send("orders", order("1")).RetriedAt(0).Processed()
		assert.Equal(t, retry.Settled, story.Attempts()[0].Outcome)
		assert.Equal(t, time.Minute, story.Attempts()[0].Duration)
	})
}

// The same message is sent twice, and the handler takes longer for one of them.
func TestSendWaitsForEveryDuplicate(t *testing.T) {
	inApp(t, func(t *testing.T, app *retrytest.App) {
		var calls atomic.Int32
		app.AddConsumerHandler(app.Router, "billing", "orders", func(*message.Message) error {
			if calls.Add(1) == 1 {
				time.Sleep(time.Minute)
			}
			return nil
		})
		for _, story := range app.SendAll("orders", order("1"), order("1")) {
			require.Len(t, story.Attempts(), 2)
			for _, attempt := range story.Attempts() {
				assert.Equal(t, retry.Processed, attempt.Outcome)
			}
		}
	})
}

func TestMessageCanBeSentAgain(t *testing.T) {
	inApp(t, func(t *testing.T, app *retrytest.App) {
		app.AddConsumerHandler(app.Router, "billing", "orders", failing(errDown))
		app.Send("orders", order("1")).RetriedAt(time.Second).Processed()
		app.AddConsumerHandler(app.Router, "mailing", "orders", failing(), inGroup("mail"))
		again := app.Send("orders", order("1"))
		again.Handler("billing").RetriedAt(time.Second).Processed()
		again.Handler("mailing").NeverRetried().Processed()
		assert.Len(t, app.Stories("orders"), 2)
	})
}

func TestObserveAndConfigurationOfTheAppAreUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		events := map[string][]string{} // by handler: a handler may have the copy before Observe gets the event of it
		app := retrytest.NewWithConfig(t, retrytest.Config{Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}, RedactReason: func(string, error) string { return "" }}})
		app.Observe(eventtest.OnEvent(func(e retry.Event) {
			mu.Lock()
			defer mu.Unlock()
			events[e.Handler] = append(events[e.Handler], fmt.Sprint(e.Outcome, " ", e.MessageUUID, " ", e.Destination))
		}))
		app.AddConsumerHandler(app.Router, "billing", "orders", always(errDown))
		app.AddConsumerHandler(app.Router, "archive", "retry.dead.billing", failing())
		story := app.Send("orders", order("1")).DeadLettered(retry.DeadReasonExhausted)
		synctest.Wait()
		mu.Lock()
		assert.Equal(t, map[string][]string{
			"billing": {"retried 1 retry.1s", "dead-lettered 1 retry.dead.billing"}, "archive": {"processed 1 "},
		}, events)
		mu.Unlock()
		assert.NotContains(t, story.DeadLetter().Metadata, recordkey.Reason)
		require.Len(t, app.Stories("retry.dead.billing"), 1)
		app.Stories("retry.dead.billing")[0].NeverRetried().Processed()
	})
}

// Without a group the handlers of a topic share its messages, as those of one queue do.
func TestHandlersOfOneGroupShareTheMessages(t *testing.T) {
	for _, group := range []string{"", "mail"} {
		inApp(t, func(t *testing.T, app *retrytest.App) {
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

		subscriber := newSubscriber(retrytest.New(t, backoff.Schedule{time.Second}))
		messages, err := subscriber.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		require.NoError(t, subscriber.Close())
		_, open := <-messages
		assert.False(t, open)
		_, err = subscriber.Subscribe(t.Context(), "orders")
		require.ErrorContains(t, err, "the subscriber is closed")
	})
}
