package retrytest_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// bill is an app's handler. The bank does not answer for five seconds, and then declines the card.
func bill(started time.Time) message.NoPublishHandlerFunc {
	return func(*message.Message) error {
		if time.Since(started) < 5*time.Second {
			return errors.New("no answer from the bank")
		}
		return backoff.Permanent(errors.New("the card was reported stolen"))
	}
}

func TestBillingGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bill := bill(time.Now())

		app := retrytest.New(t, backoff.Exponential(time.Second, 5, 4))
		app.AddConsumerHandler(app.Router, "billing", "orders", bill)

		story := app.Send("orders", message.NewMessage("order-1", []byte(`{"cents": 1999}`)))

		story.RetriedAt(time.Second, 6*time.Second)
		story.DeadLettered(retry.DeadReasonPermanent)
	})
}
