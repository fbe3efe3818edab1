package retrytest

import (
	"math"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
)

// Simulation has the times of all retries of a message whose handler fails every time and takes no time.
type Simulation struct {
	Retries      []SimulatedRetry
	DeadLetterAt time.Duration // since the first failure
	Err          error         // the error of Schedule.Validate
}

// SimulatedRetry is one retry of a Simulation.
type SimulatedRetry struct {
	Failure int           // the number of the failure before it, from 1
	Tier    backoff.Tier  // the tier of the copy
	Wait    time.Duration // how long the copy waits
	// when the handler is called again, since the first failure; at most the longest time.Duration
	At time.Duration
}

// Simulate computes the time of each retry of a schedule. Its result also has the error of an invalid schedule.
func Simulate(schedule backoff.Schedule) Simulation {
	s := Simulation{Err: schedule.Validate()}
	for failure := 1; ; failure++ {
		wait, left := schedule.Delay(failure)
		if !left {
			return s
		}
		if s.DeadLetterAt > math.MaxInt64-max(wait, 0) {
			s.DeadLetterAt = math.MaxInt64
		} else {
			s.DeadLetterAt += wait
		}
		s.Retries = append(s.Retries, SimulatedRetry{Failure: failure, Tier: backoff.Tier(wait), Wait: wait,
			At: s.DeadLetterAt})
	}
}
