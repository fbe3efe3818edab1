package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

// order is what an app bills.
type order struct{ ID string }

// charge asks a provider for the money.
func charge(order) (status int, err error) { return http.StatusOK, nil }

// An error decides what becomes of its message.
func Example_errors() {
	bill := func(msg *message.Message) error {
		var o order
		if err := json.Unmarshal(msg.Payload, &o); err != nil {
			return backoff.Permanent(err) // dead-lettered at once
		}
		status, err := charge(o)
		switch {
		case err != nil:
			return fmt.Errorf("charge %s: %w", o.ID, err) // waits for the delay of the schedule
		case status == http.StatusTooManyRequests:
			return backoff.RetryAfter(errors.New("too many requests"), 30*time.Second) // waits for at least 30s
		}
		return nil
	}
	_ = bill
}

// One subscription has one message in flight: several handlers share a queue.
func Example_concurrency() {
	var (
		router     = message.NewDefaultRouter(watermill.NopLogger{})
		subscriber message.Subscriber
		retry      *retrymw.TieredRetry
	)

	for n := range 8 {
		router.AddConsumerHandler(fmt.Sprintf("billing-%d", n), "orders", subscriber, bill).
			AddMiddleware(retry.Middleware, middleware.Timeout(time.Minute))
	}
}
