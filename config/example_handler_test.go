package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
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
