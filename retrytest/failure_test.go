package retrytest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// failedT keeps the text that a failed test prints.
type failedT struct {
	testing.TB
	text     strings.Builder
	fatal    bool
	cleanups []func()
}

func (f *failedT) Helper()           {}
func (f *failedT) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }
func (f *failedT) Errorf(format string, args ...any) {
	_, _ = fmt.Fprintf(&f.text, format+"\n", args...)
}
func (f *failedT) Logf(format string, args ...any) { f.Errorf(format, args...) }
func (f *failedT) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	f.fatal = true
	runtime.Goexit()
}

// failureOf runs a test and its cleanups. It returns the text that the test prints, and whether it called Fatalf.
func failureOf(test func(t testing.TB)) (text string, fatal bool) {
	f := &failedT{}
	for _, step := range []func(){
		func() { test(f) },
		func() {
			for _, fn := range f.cleanups {
				fn()
			}
		},
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			step()
		}()
		<-done
	}
	return f.text.String(), f.fatal
}

func TestFailedAssertionPrintsTheStory(t *testing.T) {
	const table = `at   handler   took   failure   outcome                        why
0s   billing   0s     1         retried, waits 1s on tier 1s   the bank is down
1s   billing   0s     2         dead-lettered as permanent     no such customer
`
	synctest.Test(t, func(t *testing.T) {
		text, fatal := failureOf(func(t testing.TB) {
			app := retrytest.New(t, backoff.Schedule{time.Second, time.Minute})
			app.AddConsumerHandler(app.Router, "billing", "orders",
				inTurn(errDown, backoff.Permanent(fmt.Errorf("no such customer\nat all"))))
			app.Send("orders", order("order-1")).Processed()
		})
		assert.False(t, fatal, "the test goes on after a failed assertion")
		assert.Equal(t, `retrytest: message "order-1" of "orders": last outcome`+
			"\n got: dead-lettered as permanent\nwant: processed\n"+table+"\n", exact(text))
	})
}

// Each assertion fails for what it excludes.
func TestAssertionsFail(t *testing.T) {
	snoozing := retry.Policy{
		Schedule: backoff.Schedule{time.Second},
		Rules:    []retry.Rule{{If: retry.Is(errBusy), Then: retry.Snooze(time.Second)}},
	}
	jittered := retry.Policy{Schedule: backoff.Schedule{10 * time.Second}, Jitter: 0.1}
	odd := retry.Policy{Schedule: backoff.Schedule{125 * time.Second, 10 * time.Minute, 1500 * time.Millisecond}}
	oddErrors := []error{errDown, errDown, backoff.RetryAfter(errDown, 75*time.Second)}
	twice := retry.Policy{Schedule: backoff.Schedule{time.Second, time.Minute}}
	type story = *retrytest.Story
	for _, test := range []struct {
		name    string
		policy  retry.Policy
		handler message.NoPublishHandlerFunc
		assert  func(story)
		want    string
	}{
		{"too early", twice, inTurn(errDown), func(s story) { s.RetriedAt(1100 * time.Millisecond) }, "retried at\n got: 1.001s\nwant: 1.1s\n"},
		{"too late", twice, inTurn(errDown), func(s story) { s.RetriedAt(900 * time.Millisecond) }, "retried at\n got: 1.001s\nwant: 900ms\n"},
		{"retried but expected never", twice, inTurn(errDown), func(s story) { s.NeverRetried() }, "retried at\n got: 1.001s\nwant: never\n"},
		{"retried less often", twice, inTurn(errDown), func(s story) { s.RetriedAt(time.Second, time.Minute) }, "retried at\n got: 1.001s\nwant: 1s 1m\n"},
		{"waited for another time", twice, inTurn(errDown), func(s story) { s.Waited(time.Hour) }, "waited\n got: 1.001s\nwant: 1h\n"},
		{"not processed", twice, always(backoff.Permanent(errDown)), func(s story) { s.Processed() }, "last outcome\n got: dead-lettered as permanent\nwant: processed\n"},
		{"dead-lettered for another reason", twice, always(backoff.Permanent(errDown)), func(s story) { s.DeadLettered(retry.DeadReasonExhausted) },
			"last outcome\n got: dead-lettered as permanent\nwant: dead-lettered as exhausted\n"},
		{"dead-lettered, not blocked", twice, always(backoff.Permanent(errDown)), func(s story) { s.Blocked(retry.DeadReasonPermanent) },
			"last outcome\n got: dead-lettered as permanent\nwant: blocked as permanent\n"},
		{"processed", twice, failing(), func(s story) { s.Processed().DeadLettered(retry.DeadReasonPermanent) }, "last outcome\n got: processed\nwant: dead-lettered as permanent\n"},
		{"not discarded", twice, inTurn(errDown), func(s story) { s.Discarded() }, "last outcome\n got: recovered\nwant: discarded\n"},
		{"snoozed", snoozing, inTurn(errBusy), func(s story) { s.NeverRetried() }, "want: never\n"},
		{"snoozed once", snoozing, inTurn(errBusy), func(s story) { s.Waited(time.Second, time.Second) }, "waited\n got: 1.001s\nwant: 1s 1s\n"},
		{"nacked by the router", twice, nacks(1, nil), func(s story) { s.NeverRetried() }, "retried at\n got: 0s\nwant: never\n"},
		{"nacked by the handler", twice, nacks(1, errDown), func(s story) { s.NeverRetried() }, "retried at\n got: 0s\nwant: never\n"},
		{"without times", twice, failing(), func(s story) { s.RetriedAt() }, "RetriedAt needs the times of the retries: use NeverRetried"},
		{"without waits", twice, failing(), func(s story) { s.Waited() }, "Waited needs the waits before the retries: use NeverRetried"},
		{"later than the jitter", jittered, always(errDown), func(s story) { s.RetriedAt(8900 * time.Millisecond) }, "retried, waits 1"},
		{"earlier than the jitter", jittered, always(errDown), func(s story) { s.RetriedAt(11100 * time.Millisecond) }, "retried, waits 1"},
		{"waited longer than the jitter", jittered, always(errDown), func(s story) { s.Waited(8900 * time.Millisecond) }, "retried, waits 1"},
		{"waited shorter than the jitter", jittered, always(errDown), func(s story) { s.Waited(11100 * time.Millisecond) }, "retried, waits 1"},
		{"times are spelled like tiers", odd, inTurn(oddErrors...), func(s story) { s.RetriedAt(125 * time.Second) }, "retried at\n got: 125.001s 725.002s 800.003s\nwant: 125s\n"},
		{"waits are spelled like tiers", odd, inTurn(oddErrors...), func(s story) { s.Waited(125*time.Second, 200*time.Second, time.Hour) }, "waited\n got: 125.001s 600.001s 75.001s\nwant: 125s 200s 1h\n"},
		{"delays are spelled like tiers", odd, inTurn(oddErrors...), func(s story) { s.Discarded() }, "retried, waits 75s on tier 125s "},
	} {
		bubble(t, test.name, func(t *testing.T) {
			text, fatal := failureOf(func(t testing.TB) {
				app := retrytest.NewWithConfig(t, retrytest.Config{Policy: test.policy})
				app.AddConsumerHandler(app.Router, "billing", "orders", test.handler)
				test.assert(app.Send("orders", order("1")))
			})
			assert.Contains(t, text, test.want)
			assert.Equal(t, strings.Contains(test.want, "needs"), fatal)
		})
	}
}

// exact removes the millisecond that due times are rounded up by.
func exact(text string) string {
	return strings.NewReplacer("1.001s   ", "1s   ", "1.001s", "1s", "at       ", "at   ", "0s       billing", "0s   billing").Replace(text)
}

// unready is a subscriber that cannot subscribe.
type unready struct{}

func (unready) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return nil, errDown
}

func (unready) Close() error { return nil }

// Watermill's router waits for handlers that were added and did not start. A goroutine that remains in the bubble is a
// panic, which ends the whole test binary.
func TestTestThatCannotGoOnPrintsTheCause(t *testing.T) {
	send := func(app *retrytest.App) *retrytest.Story { return app.Send("orders", order("1")) }
	for _, test := range []struct {
		name  string
		test  func(*retrytest.App)
		want  string
		whole bool // want is all of the text
	}{
		{"no handler is subscribed to the topic", func(app *retrytest.App) {
			app.AddConsumerHandler(app.Router, "billing", "orders", failing())
			app.AddConsumerHandler(app.Router, "mailing", "invoices", failing())
			app.Send("ordres", order("1"))
		}, `no handler is subscribed to "ordres"; topics with a handler: "invoices", "orders"`, false},
		{"no handler at all", func(app *retrytest.App) { send(app) }, `topics with a handler: none`, false},
		{"a router of the app's own that does not run", func(app *retrytest.App) {
			router := message.NewDefaultRouter(nil)
			app.AddConsumerHandler(router, "billing", "orders", failing())
			send(app)
		}, `topics with a handler: none; for handlers on a router of your own call app.Run(router) before`, false},
		{"the middleware is missing", func(app *retrytest.App) {
			app.Router.AddConsumerHandler("billing", "orders", newSubscriber(app), always(errDown))
			send(app)
		}, `message "1" was given back 100 times without a delay: the handler's errors must reach App.Middleware`, false},
		{"a middleware outside of the retry middleware panics", func(app *retrytest.App) {
			app.Router.AddConsumerHandler("billing", "orders", newSubscriber(app), failing()).
				AddMiddleware(func(message.HandlerFunc) message.HandlerFunc {
					return func(*message.Message) ([]*message.Message, error) { panic("broken") }
				}, app.Middleware)
			send(app)
		}, `panicked, or ended its goroutine`, false},
		{"a middleware outside of the retry middleware fails, on a router of the app's own", func(app *retrytest.App) {
			router := message.NewDefaultRouter(nil)
			router.AddConsumerHandler("billing", "orders", newSubscriber(app), failing()).
				AddMiddleware(func(message.HandlerFunc) message.HandlerFunc {
					return func(*message.Message) ([]*message.Message, error) { return nil, errDown }
				}, app.Middleware)
			app.Run(router)
			send(app)
		}, `message "1" was given back 100 times`, false},
		{"two handlers", func(app *retrytest.App) {
			app.AddConsumerHandler(app.Router, "billing", "orders", failing())
			app.AddConsumerHandler(app.Router, "mailing", "orders", failing(), inGroup("mail"))
			send(app).Processed()
		}, `2 handlers got message "1": choose one with Story.Handler`, false},
		{"an unknown handler", func(app *retrytest.App) {
			app.AddConsumerHandler(app.Router, "billing", "orders", failing())
			send(app).Handler("biling")
		}, `handler "biling" did not get message "1"`, false},
		{"a plugin that fails", func(app *retrytest.App) {
			app.Router.AddPlugin(func(*message.Router) error { return errDown })
			app.AddConsumerHandler(app.Router, "billing", "orders", failing())
			send(app)
		}, `the router does not run`, false},
		{"a subscriber of the app's own fails", func(app *retrytest.App) {
			app.AddConsumerHandler(app.Router, "billing", "orders", failing())
			app.Router.AddConsumerHandler("own", "orders", unready{}, failing())
			app.Router.AddConsumerHandler("own too", "orders", unready{}, failing())
			send(app)
		}, "retrytest: the router does not run: cannot subscribe topic orders: the bank is down\n", true},
		{"a subscriber on a router of the app's own fails", func(app *retrytest.App) {
			router := message.NewDefaultRouter(nil)
			router.AddConsumerHandler("own", "orders", unready{}, failing())
			app.Run(router)
		}, "retrytest: the router does not run: cannot subscribe topic orders: the bank is down\n", true},
		{"a subscriber on a router that runs fails", func(app *retrytest.App) {
			app.AddConsumerHandler(app.Router, "billing", "orders", failing())
			send(app).Processed()
			app.Router.AddConsumerHandler("own", "orders", unready{}, failing())
			send(app)
		}, "retrytest: cannot run the handlers: cannot subscribe topic orders: the bank is down\n", true},
	} {
		bubble(t, test.name, func(t *testing.T) {
			text, fatal := failureOf(func(t testing.TB) { test.test(retrytest.New(t, backoff.Schedule{time.Second})) })
			assert.True(t, fatal)
			if test.whole {
				assert.Equal(t, test.want, text)
			} else {
				assert.Contains(t, text, test.want)
			}
			assert.Less(t, strings.Count(text, "\n"), 40)
		})
	}
}

func TestAppOfOutsideOfTheBubbleEndsTheTest(t *testing.T) {
	for name, use := range map[string]func(*retrytest.App){
		"Send": func(app *retrytest.App) { app.Send("orders", order("1")) },
		"Run":  func(app *retrytest.App) { app.Run(message.NewDefaultRouter(nil)) },
		"AddConsumerHandler": func(app *retrytest.App) {
			app.AddConsumerHandler(app.Router, "mailing", "orders", failing())
		},
	} {
		t.Run(name, func(t *testing.T) {
			text, fatal := failureOf(func(outer testing.TB) {
				app := retrytest.New(outer, backoff.Schedule{time.Millisecond})
				app.AddConsumerHandler(app.Router, "billing", "orders", failing())
				synctest.Test(t, func(*testing.T) {
					done := make(chan struct{})
					go func() { // Fatalf ends this goroutine
						defer close(done)
						use(app)
					}()
					<-done
				})
			})
			assert.True(t, fatal)
			assert.Equal(t, "retrytest: the App was made outside of synctest.Test and is used inside, where it would hang: call New inside of "+
				"synctest.Test, with the t of its function\n", text)
		})
	}
}

// Without this failure synctest reports a deadlock, without the handler's name.
func TestHandlerThatDoesNotReturnIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text, fatal := failureOf(func(t testing.TB) {
			app := retrytest.NewWithConfig(t, retrytest.Config{Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}}, Patience: time.Minute})
			app.AddConsumerHandler(app.Router, "billing", "orders", func(*message.Message) error {
				time.Sleep(24 * time.Hour)
				return nil
			})
			app.Send("orders", order("1"))
		})
		assert.True(t, fatal)
		assert.Contains(t, text, `nothing has happened to message "1" for 1m: handler "billing" has not returned`)
		assert.Contains(t, text, `the test is over, but handler "billing" has not returned 1m after the context of its message ended`)
	})
}

func TestInvalidConfigurationEndsTheTest(t *testing.T) {
	for _, test := range []struct {
		config retrytest.Config
		want   string
	}{
		{retrytest.Config{}, "Config.Policy.Schedule: backoff: no retries"},
		{retrytest.Config{Policy: retry.Policy{Schedule: backoff.Schedule{1}}}, "is too short"},
		{retrytest.Config{Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}}, Patience: -1}, "Config.Patience is -1ns"},
		{
			retrytest.Config{Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}, MaxHold: -1}},
			"MaxHold is -1ns",
		},
		{retrytest.Config{Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4)}}, "outside of a synctest bubble this schedule takes 156s of real time, more than 10s"},
	} {
		text, fatal := failureOf(func(t testing.TB) { retrytest.NewWithConfig(t, test.config) })
		assert.True(t, fatal)
		assert.Contains(t, text, test.want)
	}
}

// In real time each retry may be late by half a second: the machine may be busy.
func TestAppRetriesInRealTimeOutsideOfABubble(t *testing.T) {
	t.Parallel()
	var all []retrytest.Attempt
	text, _ := failureOf(func(t testing.TB) {
		app := retrytest.New(t, backoff.Schedule{20 * time.Millisecond, 50 * time.Millisecond})
		app.AddConsumerHandler(app.Router, "billing", "orders", always(errDown))
		story := app.Send("orders", order("1")).DeadLettered(retry.DeadReasonExhausted)
		all = story.Attempts()
		story.RetriedAt(20*time.Millisecond, 70*time.Millisecond)
	})
	require.Len(t, all, 3)
	assert.GreaterOrEqual(t, all[1].At, 20*time.Millisecond)
	assert.GreaterOrEqual(t, all[2].At, 70*time.Millisecond)
	assert.Equal(t, all[1].At > 520*time.Millisecond || all[2].At > 1070*time.Millisecond, text != "", text)
}

// synctest fails the test if a goroutine remains. The first App is never used.
func TestAppLeavesNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		retrytest.New(t, backoff.Schedule{time.Second})
		app := retrytest.New(t, backoff.Schedule{time.Second})
		app.AddConsumerHandler(app.Router, "billing", "orders", failing())
		other := retrytest.New(t, backoff.Schedule{time.Second})
		other.AddConsumerHandler(other.Router, "billing", "orders", failing(errDown))
		other.Send("orders", order("1")).RetriedAt(time.Second)
		other.AddConsumerHandler(other.Router, "mailing", "mails", failing()) // it is not started
	})
}

func TestMessagesOfAnotherPubSubAreNotInTheApp(t *testing.T) {
	inApp(t, func(t *testing.T, app *retrytest.App) {
		app.AddConsumerHandler(app.Router, "billing", "orders", failing())
		pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
		got := make(chan string, 1)
		app.Router.AddConsumerHandler("own", "orders", pubSub, func(msg *message.Message) error {
			got <- msg.UUID
			return nil
		})
		app.Send("orders", order("1"))
		require.NoError(t, pubSub.Publish("orders", order("2")))
		assert.Equal(t, "2", <-got)
	})
}

// slowly makes the goroutine that logs a text wait: others go on before it.
type slowly struct {
	watermill.LoggerAdapter
	text string
}

func (l slowly) Info(msg string, fields watermill.LogFields) {
	if msg == l.text {
		time.Sleep(time.Millisecond)
	}
	l.LoggerAdapter.Info(msg, fields)
}

func (l slowly) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return slowly{l.LoggerAdapter.With(fields), l.text}
}

// The test publishes messages and does not wait for them. The router that sees all its handlers stopped closes, before
// it has removed the last one.
func TestTestMayEndWhileMessagesAreInFlight(t *testing.T) {
	for _, handler := range []message.NoPublishHandlerFunc{
		always(errDown),
		func(*message.Message) error { time.Sleep(time.Minute); return errDown },
		func(msg *message.Message) error { <-msg.Context().Done(); return context.Canceled },
	} {
		synctest.Test(t, func(t *testing.T) {
			t.Cleanup(func() { time.Sleep(time.Second) }) // the goroutines that wait in the logger end
			app := retrytest.NewWithConfig(t, retrytest.Config{
				Policy: retry.Policy{Schedule: backoff.Schedule{time.Second, time.Hour}},
				Logger: slowly{watermill.NopLogger{}, "Subscriber stopped"},
			})
			app.AddConsumerHandler(app.Router, "billing", "orders", handler)
			app.AddConsumerHandler(app.Router, "mailing", "mails", failing())
			app.Send("mails", order("0"))
			for n := range 20 {
				require.NoError(t, app.Publisher().Publish("orders", order(fmt.Sprint(n))))
			}
			time.Sleep(2 * time.Second)
			for _, story := range app.Stories("orders") {
				assert.NotEmpty(t, story.String())
			}
		})
	}
}
