package retrytest

import (
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
)

// Simulation is when a message that fails every time is retried, where its handler takes no time.
type Simulation struct {
	Retries      []SimulatedRetry
	DeadLetterAt time.Duration // since the first failure
	Err          error         // what Schedule.Validate says of the schedule
}

// SimulatedRetry is one retry of a Simulation.
type SimulatedRetry struct {
	Failure int           // which failure it follows, from 1
	Tier    backoff.Tier  // where the message waits
	Wait    time.Duration // how long
	At      time.Duration // when the handler is called again, since the first failure; the longest time.Duration if it is longer
}

// Simulate computes when each retry of a schedule happens.
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
		s.Retries = append(s.Retries, SimulatedRetry{Failure: failure, Tier: backoff.Tier(wait), Wait: wait, At: s.DeadLetterAt})
	}
}

// String is a table with a row for each failure, and what is wrong with the schedule.
func (s Simulation) String() string {
	if s.Err != nil {
		return "not a valid schedule: " + s.Err.Error() + "\n"
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	row(table, "failure", "at", "tier", "waits")
	at := time.Duration(0)
	for _, retry := range s.Retries {
		row(table, fmt.Sprint(retry.Failure), brief(at), retry.Tier.String(), brief(retry.Wait))
		at = retry.At
	}
	row(table, fmt.Sprint(len(s.Retries)+1), brief(at), "dead letter", "")
	_ = table.Flush()
	return trimLines(text.String())
}
