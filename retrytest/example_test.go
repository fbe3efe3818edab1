package retrytest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// exampleT replaces the t of a test, because an example has none. Examples run in real time, so their schedules are short.
type exampleT struct {
	testing.TB
	cleanups []func()
	lines    int // how many lines of a failure are printed; 0: all
}

func (t *exampleT) Helper()                           {}
func (t *exampleT) Cleanup(fn func())                 { t.cleanups = append(t.cleanups, fn) }
func (t *exampleT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (t *exampleT) Errorf(format string, args ...any) {
	lines := strings.Split(fmt.Sprintf(format, args...), "\n")
	if t.lines > 0 {
		lines = lines[:min(t.lines, len(lines))]
	}
	fmt.Println(strings.Join(lines, "\n"))
}
func (t *exampleT) Logf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (t *exampleT) end() {
	for _, fn := range t.cleanups {
		fn()
	}
}

// charge is a handler that fails for the first two attempts.
func charge(msg *message.Message) error {
	if record, _ := retry.ReadRecord(msg.Metadata); record.Failures < 2 {
		return errors.New("no answer from the bank")
	}
	return nil
}

// The provider limits the rate twice, and then is down for as long as the message may wait.
func ExampleSimulate() {
	errRateLimit := errors.New("the provider limits the rate")
	fmt.Print(retrytest.Simulate(retrytest.SimulationConfig{
		Policy: retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4), Rules: []retry.Rule{{Name: "rate limit", If: retry.Is(errRateLimit), Then: retry.Snooze(time.Minute)}}, MaxAge: 2 * time.Minute},

		TiersWait: true, // as on RabbitMQ
		Takes:     200 * time.Millisecond,
		Fails: func(call int) error {
			if call <= 2 {
				return backoff.RetryAfter(errRateLimit, 30*time.Second)
			}
			return errors.New("no answer from the provider")
		},
	}))
	// Output:
	// at      took    failure   outcome                          rule         why
	// 0s      200ms   -         snoozed, waits 30s on tier 25s   rate limit   the provider limits the rate
	// 25.2s   0s      -         parked, waits 5s on tier 5s
	// 30.2s   200ms   -         snoozed, waits 30s on tier 25s   rate limit   the provider limits the rate
	// 55.4s   0s      -         parked, waits 5s on tier 5s
	// 60.4s   200ms   1         retried, waits 1s on tier 1s                  no answer from the provider
	// 61.6s   200ms   2         retried, waits 5s on tier 5s                  no answer from the provider
	// 66.8s   200ms   3         retried, waits 25s on tier 25s                no answer from the provider
	// 92s     200ms   4         dead-lettered as expired                      no answer from the provider
}

// Of many rounds on one tier the table has the first and the last.
func ExampleSimulatedStory_String() {
	fmt.Print(retrytest.Simulate(retrytest.SimulationConfig{
		Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 1)}, TiersWait: true,
		Fails: func(int) error { return backoff.RetryAfter(errors.New("come back in a minute"), time.Minute) },
	}).String())
	// Output:
	// at    took   failure   outcome                        why
	// 0s    0s     1         retried, waits 1m on tier 1s   come back in a minute
	// 1s    0s     -         parked, waits 59s on tier 1s
	// ...                    57 more
	// 59s   0s     -         parked, waits 1s on tier 1s
	// 1m    0s     2         dead-lettered as exhausted     come back in a minute
}

func ExampleNew() {
	t := &exampleT{} // in a test: the t of synctest.Test
	defer t.end()

	app := retrytest.New(t, backoff.Constant(time.Millisecond, 3))
	app.AddConsumerHandler(app.Router, "billing", "orders", charge)
	story := app.Send("orders", message.NewMessage("order-1", nil)).Processed()
	for _, attempt := range story.Attempts() {
		fmt.Println(attempt.Outcome, attempt.Record.Failures, attempt.Tier, attempt.Err)
	}
	// Output:
	// retried 1 1ms no answer from the bank
	// retried 2 1ms no answer from the bank
	// recovered 2 0s <nil>
}

func ExampleNewWithConfig() {
	t := &exampleT{}
	defer t.end()

	app := retrytest.NewWithConfig(t, retrytest.Config{
		Policy: retry.Policy{ // the app's
			Schedule:     backoff.Constant(time.Millisecond, 1),
			RedactReason: func(string, error) string { return "secret" },
		},
	})
	app.AddConsumerHandler(app.Router, "billing", "orders", charge)
	story := app.Send("orders", message.NewMessage("order-1", nil)).DeadLettered(retry.DeadReasonExhausted)
	fmt.Println(story.DeadLetter().Metadata["retry_reason"])
	// Output:
	// secret
}

// addHandlers is a function of an app. In production it gets the router and the Connection of config.Connect.
func addHandlers(router *message.Router, retries retry.Connection) {
	retries.AddHandler(router, "billing", "orders", "invoices", func(msg *message.Message) ([]*message.Message, error) {
		if err := charge(msg); err != nil {
			return nil, err
		}
		return []*message.Message{message.NewMessage("invoice-1", nil)}, nil
	})
	retries.AddConsumerHandler(router, "mailing", "invoices", charge, retry.Options{
		Policy: &retry.Policy{Schedule: backoff.Constant(2*time.Millisecond, 5)}, Concurrency: 8,
	})
}

// The app's own function adds its handlers as in production.
func ExampleApp() {
	t := &exampleT{} // in a test: the t of synctest.Test
	defer t.end()

	app := retrytest.New(t, backoff.Constant(time.Millisecond, 3))
	addHandlers(app.Router, app)

	app.Send("orders", message.NewMessage("order-1", nil)).Processed()
	for _, invoice := range app.Stories("invoices") {
		for _, attempt := range invoice.Processed().Attempts() {
			fmt.Println(attempt.Handler, attempt.Outcome, attempt.Tier)
		}
	}
	// Output:
	// mailing retried 2ms
	// mailing retried 2ms
	// mailing recovered 0s
}

// Code that adds its handlers by itself gets a subscriber, and the router gets the middleware.
func ExampleApp_Subscriber() {
	t := &exampleT{}
	defer t.end()

	app := retrytest.New(t, backoff.Constant(time.Millisecond, 3))
	app.Router.AddMiddleware(app.Middleware)
	subscriber, err := app.Subscriber("billing")
	if err != nil {
		t.Fatalf("%v", err)
	}
	app.Router.AddConsumerHandler("billing-1", "orders", subscriber, charge)
	app.Router.AddConsumerHandler("billing-2", "orders", subscriber, charge)
	story := app.Send("orders", message.NewMessage("order-1", nil)).Processed()
	fmt.Println(len(story.Attempts()), "attempts")
	// Output:
	// 3 attempts
}

// The app's constructor makes the router.
func ExampleApp_Run() {
	t := &exampleT{}
	defer t.end()

	newRouter := func(retries retry.Connection) *message.Router {
		router := message.NewDefaultRouter(nil)
		retries.AddConsumerHandler(router, "billing", "orders", charge)
		return router
	}

	app := retrytest.New(t, backoff.Constant(time.Millisecond, 3))
	app.Run(newRouter(app))
	story := app.Send("orders", message.NewMessage("order-1", nil)).Processed()
	fmt.Println(len(story.Attempts()), "attempts")
	// Output:
	// 3 attempts
}

// A message that is published without waiting has a story too. Send waits for all messages.
func ExampleApp_Stories() {
	t := &exampleT{}
	defer t.end()

	app := retrytest.New(t, backoff.Constant(time.Millisecond, 3))
	app.AddConsumerHandler(app.Router, "billing", "orders", charge)
	app.Send("orders", message.NewMessage("order-1", nil))
	if err := app.Publisher().Publish("orders", message.NewMessage("order-2", nil)); err != nil {
		t.Fatalf("%v", err)
	}
	app.Send("orders", message.NewMessage("order-3", nil))
	for _, story := range app.Stories("orders") {
		fmt.Println(story.Processed().Message.UUID)
	}
	// Output:
	// order-1
	// order-2
	// order-3
}

// The letter is red as long as the handler returns its error. In a test t is that of the test, and the file one of
// letters.GoTest or "wmretry dead show --go-test".
func ExampleReplay() {
	t := &exampleT{}
	defer t.end()
	charge := func(cents int) error {
		if cents <= 0 {
			return backoff.Permanent(errors.New("order 10 has no amount"))
		}
		return nil
	}
	bill := func(msg *message.Message) error {
		var order struct{ Cents int }
		if err := json.Unmarshal(msg.Payload, &order); err != nil {
			return err
		}
		return charge(order.Cents)
	}
	retrytest.Replay(t, "testdata/order-10.json", bill)
	charge = func(int) error { return nil } // the bug is repaired
	retrytest.Replay(t, "testdata/order-10.json", bill)
	// Output:
	// retrytest: handler "billing" still fails with "order 10 has no amount" (*errors.errorString): that is the recorded error of letter "order-10"
	// retrytest: handler "billing" takes letter "order-10" without an error; the recorded error is gone: "order 10 has no amount" (*errors.errorString)
}

// sendOrder sends an order to a handler, with retries after 1 ms and 2 ms.
func sendOrder(t *exampleT, handler message.NoPublishHandlerFunc) *retrytest.Story {
	app := retrytest.New(t, backoff.Schedule{time.Millisecond, 2 * time.Millisecond})
	app.AddConsumerHandler(app.Router, "billing", "orders", handler)
	return app.Send("orders", message.NewMessage("order-1", nil))
}

// decline is a handler whose error no retry can solve.
func decline(*message.Message) error { return backoff.Permanent(errors.New("no such customer")) }

// Handlers of different groups each get every message.
func ExampleStory_Handler() {
	t := &exampleT{}
	defer t.end()

	app := retrytest.New(t, backoff.Constant(time.Millisecond, 3))
	app.AddConsumerHandler(app.Router, "billing", "orders", charge)
	app.AddConsumerHandler(app.Router, "printing", "orders", func(*message.Message) error {
		return backoff.Permanent(errors.New("the printer has burnt down"))
	}, retry.Options{Group: "printing"})
	story := app.Send("orders", message.NewMessage("order-1", nil))
	story.Handler("billing").Processed()
	story.Handler("printing").NeverRetried().DeadLettered(retry.DeadReasonPermanent)
	fmt.Println(story.Handler("printing").DeadLetter().Metadata["retry_reason"])
	// Output:
	// the printer has burnt down
}

// The failed assertion prints the story after these lines.
func ExampleStory_DeadLettered() {
	t := &exampleT{lines: 3}
	defer t.end()

	story := sendOrder(t, decline)
	story.DeadLettered(retry.DeadReasonPermanent)
	story.DeadLettered(retry.DeadReasonExhausted)
	// Output:
	// retrytest: message "order-1" of "orders": last outcome
	//  got: dead-lettered as permanent
	// want: dead-lettered as exhausted
}
