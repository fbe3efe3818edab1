package retrytest

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// maxSimulated is how many attempts Simulate computes: a message that a rule snoozes at every call has no end
// without a MaxAge.
const maxSimulated = 10_000

// SimulationConfig configures Simulate.
type SimulationConfig struct {
	// Policy is that of the handler. Its Schedule is required. With a Jitter, the story has the shortest delays, and
	// shows from when to when each attempt can be.
	Policy retry.Policy

	// TiersWait is true for RabbitMQ: a message waits for whole tiers, and for a requested delay in rounds. False: each
	// message waits exactly, as with package relay.
	TiersWait bool

	// Fails returns the error of a call of the handler, counted from 1. The message is processed with the first nil.
	// The default fails at every call.
	Fails func(call int) error

	// Takes is how long each call of the handler takes. The default is 0.
	Takes time.Duration

	// Age is how old the message is when it is delivered first, as MaxAgeFrom returns it. MaxAge then holds from its
	// beginning, too. The default is 0: MaxAge holds from the first failure.
	Age time.Duration
}

// SimulatedStory has the attempts of a message that Simulate has computed.
type SimulatedStory struct {
	// Attempts are the deliveries of the message, first to last. One without a call of the handler is parked, or
	// dead-lettered as expired. They have no handler name.
	Attempts []Attempt

	// Err has the faults of the configuration. Then there are no attempts.
	Err error
}

// Simulate computes the attempts of one message, without an app and without waiting. The outcomes are those that
// the retry middleware decides. Every publish succeeds, tiers end on time, and no other messages delay this one. A
// breaker is not simulated. The story ends after 10,000 attempts where the message does not.
//
// With Jitter the story has the shortest delays. MaxAge can end it earlier.
func Simulate(config SimulationConfig) SimulatedStory {
	tiered, err := config.retry()
	if err != nil {
		return SimulatedStory{Err: err}
	}
	fails := config.Fails
	if fails == nil {
		fails = func(int) error { return errSimulated }
	}
	var story SimulatedStory
	var record retry.Record
	later := time.Duration(0)
	failed := -1 // the last attempt that waits for its retry
	for at, e := range tiered.Simulate(backend.SimulatedMessage{Topic: "topic", Handler: "handler", Handle: fails,
		Takes: config.Takes, Age: config.Age}) {
		a := Attempt{
			At: at, came: record, simulated: true, later: min(later, math.MaxInt64-at), nacked: e.Outcome == retry.GivenBack,
		}
		a.report(e)
		later = min(later, math.MaxInt64-e.Spread) + e.Spread
		if a.Outcome != retry.Parked && failed >= 0 {
			before := &story.Attempts[failed]
			before.Waited, failed = at-before.At-before.Duration, -1
		}
		if a.again() {
			failed = len(story.Attempts)
		}
		record = e.Record
		if story.Attempts = append(story.Attempts, a); len(story.Attempts) == maxSimulated {
			break
		}
	}
	return story
}

var errSimulated = errors.New("the handler fails")

// retry makes the middleware that decides.
func (c SimulationConfig) retry() (*middleware.TieredRetry, error) {
	var all []error
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"Takes", c.Takes}, {"Age", c.Age}} {
		if d.value < 0 {
			all = append(all, fmt.Errorf("%s is %v: it must be 0 or more", d.field, d.value))
		}
	}
	policy := c.Policy
	policy.MaxAgeFrom = nil
	if c.Age > 0 {
		policy.MaxAgeFrom = func(*message.Message) time.Time { return time.Time{} } // Simulate gets the age
	}
	if err := errors.Join(append(all, faults.In("Policy", policy.Validate()))...); err != nil {
		return nil, err
	}
	return middleware.New(policy, simulated{c.TiersWait}, nil)
}

// simulated is the backend of a middleware that publishes nothing.
type simulated struct{ tiersWait bool }

func (s simulated) Use(retry.Policy) (backend.Traits, error) {
	return backend.Traits{TiersWait: s.tiersWait}, nil
}

func (simulated) Publish(backend.Copy) (backend.Destination, error) {
	return backend.Destination{}, errors.New("Simulate publishes nothing")
}
