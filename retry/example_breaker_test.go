package retry_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

var errDeclined = errors.New("the card was declined")

// The handler pauses while the bank is down. An order whose card is declined says nothing about the others.
func ExampleBreaker() {
	var retries retry.Connection // of config.Connect, relay.Connect or retrytest.New
	start := func(router *message.Router, bill message.NoPublishHandlerFunc) {
		retries.AddConsumerHandler(router, "billing", "orders", bill, retry.Options{
			Policy: &retry.Policy{Schedule: backoff.Constant(time.Minute, 30), Breaker: &retry.Breaker{
				MaxPause: 5 * time.Second,
				Failed:   func(err error) bool { return !errors.Is(err, errDeclined) },
			}},
		})
	}
	_ = start
}

func ExampleBreaker_Validate() {
	fmt.Println(retry.Breaker{Ratio: 1.5, Pause: time.Minute, MaxPause: time.Second}.Validate())
	// Output:
	// Ratio is 1.5: it must be more than 0 and at most 1, or 0 for the default
	// Pause is 1m0s: it must be at most MaxPause, 1s
}
