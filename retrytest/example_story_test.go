package retrytest_test

import (
	"errors"
	"fmt"
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
