package config_test

import (
	"errors"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

var errDeclined = errors.New("the card was declined") // of bill

// The handler pauses while the bank is down.
func Example_breaker() {
	rabbit.AddConsumerHandler(router, "billing", "orders", bill, retry.Options{
		Policy: &retry.Policy{Schedule: backoff.Constant(time.Minute, 30), Breaker: &retry.Breaker{
			MaxPause: 5 * time.Second,
			Failed:   func(err error) bool { return !errors.Is(err, errDeclined) }, // a declined card is no outage
		}},
	})
}
