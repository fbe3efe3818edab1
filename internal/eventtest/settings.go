package eventtest

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// Settings are what a test makes a middleware of. They are its backend.
type Settings struct {
	Policy retry.Policy
	backend.Traits
	Publisher   message.Publisher                               // gets the copies, under the topics of Destination
	Destination func(backend.Copy) (backend.Destination, error) // nil: topics like 1s.orders and dead.orders
}

// Make makes the middleware.
func (s Settings) Make(logger watermill.LoggerAdapter) (*middleware.TieredRetry, error) {
	return middleware.New(s.Policy, s, logger)
}

// Use implements backend.Backend.
func (s Settings) Use(retry.Policy) (backend.Traits, error) { return s.Traits, nil }

// Publish implements backend.Backend.
func (s Settings) Publish(c backend.Copy) (backend.Destination, error) {
	destination := s.Destination
	if destination == nil {
		destination = Destination
	}
	to, err := destination(c)
	if err == nil {
		err = s.Publisher.Publish(to.Topic, c.Message)
	}
	return to, err
}

// Destination returns topics like 1s.orders and dead.orders.
func Destination(c backend.Copy) (backend.Destination, error) {
	if c.Tier == 0 {
		return backend.Destination{Topic: "dead." + c.Topic}, nil
	}
	return backend.Destination{Topic: fmt.Sprintf("%v.%s", c.Tier, c.Topic)}, nil
}

// Tiers returns the tiers of the policy.
func (s Settings) Tiers() []backoff.Tier { return middleware.Tiers(s.Policy, s.TiersWait) }
