package retrytest_test

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

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

func ExampleStory_Attempts() {
	t := &exampleT{}
	defer t.end()

	for _, attempt := range sendOrder(t, charge).Attempts() {
		fmt.Println(attempt.Handler, attempt.Outcome)
	}
	// Output:
	// billing retried
	// billing retried
	// billing recovered
}

func ExampleStory_DeadLetter() {
	t := &exampleT{}
	defer t.end()

	record, _ := retry.ReadRecord(sendOrder(t, decline).DeadLetter().Metadata)
	fmt.Println(record.Failures, record.DeadReason, record.Reason)
	// Output:
	// 1 permanent no such customer
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

func ExampleStory_Processed() {
	t := &exampleT{lines: 3}
	defer t.end()

	sendOrder(t, charge).Processed()
	sendOrder(t, decline).Processed()
	// Output:
	// retrytest: message "order-1" of "orders": last outcome
	//  got: dead-lettered as permanent
	// want: processed
}

// sendWithRule sends an order to a handler whose rules decide about its first error.
func sendWithRule(t *exampleT, then retry.Action) *retrytest.Story {
	app := retrytest.NewWithConfig(t, retrytest.Config{Policy: retry.Policy{
		Schedule: backoff.Schedule{time.Millisecond, 2 * time.Millisecond},
		Rules:    []retry.Rule{{Name: "closed", If: func(retry.Record, error) bool { return true }, Then: then}},
	}})
	app.AddConsumerHandler(app.Router, "billing", "orders", func(msg *message.Message) error {
		if record, _ := retry.ReadRecord(msg.Metadata); record.Snoozes == 0 {
			return errors.New("the bank is closed")
		}
		return nil
	})
	return app.Send("orders", message.NewMessage("order-1", nil))
}

// A snoozed message waits, and counts no failure.
func ExampleStory_Snoozed() {
	t := &exampleT{}
	defer t.end()

	story := sendWithRule(t, retry.Snooze(2*time.Millisecond)).Snoozed(2 * time.Millisecond).Processed()
	fmt.Println(story.Attempts()[1].Record.Failures, "failures")
	// Output:
	// 0 failures
}

func ExampleStory_Discarded() {
	t := &exampleT{}
	defer t.end()

	story := sendWithRule(t, retry.Discard()).NeverRetried().Discarded()
	fmt.Println(story.Attempts()[0].Rule, story.DeadLetter() == nil)
	// Output:
	// closed true
}

// The times are counted from the first delivery.
func ExampleStory_RetriedAt() {
	t := &exampleT{}
	defer t.end()

	story := sendOrder(t, charge).RetriedAt(time.Millisecond, 3*time.Millisecond)
	fmt.Println(len(story.Attempts())-1, "retries")
	// Output:
	// 2 retries
}

// Each wait is counted from the failure before it.
func ExampleStory_Waited() {
	t := &exampleT{}
	defer t.end()

	story := sendOrder(t, charge).Waited(time.Millisecond, 2*time.Millisecond)
	fmt.Println(len(story.Attempts())-1, "retries")
	// Output:
	// 2 retries
}

func ExampleStory_NeverRetried() {
	t := &exampleT{}
	defer t.end()

	story := sendOrder(t, decline).NeverRetried()
	fmt.Println(story.Attempts()[0].Outcome)
	// Output:
	// dead-lettered
}

// The table has one row for each attempt.
func ExampleStory_String() {
	t := &exampleT{}
	defer t.end()

	header, rows, _ := strings.Cut(sendOrder(t, decline).String(), "\n")
	fmt.Println(strings.Fields(header))
	fmt.Println(strings.Contains(rows, "dead-lettered as permanent   no such customer"))
	// Output:
	// [at handler took failure outcome why]
	// true
}
