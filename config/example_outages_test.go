package config_test

import (
	"errors"
	"time"

	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

var errDeclined = errors.New("the card was declined") // of bill

// The handler pauses while the bank is down.
func Example_breaker() {
	rabbit.AddConsumerHandler(router, "billing", "orders", bill, retrymw.HandlerOptions{
		Breaker: &retry.Breaker{
			MaxPause: 5 * time.Second,
			Failed:   func(err error) bool { return !errors.Is(err, errDeclined) }, // a declined card is no outage
		},
	})
}
