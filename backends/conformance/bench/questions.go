package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/tieredretry/watermill-retry/tools/claims"
)

// tier is how long a message waits that fails.
const tier = time.Second

var (
	library = session{side: ownSide, processes: 1}
	pair    = session{side: ownSide, processes: 2}
	byHand  = session{side: handSide, processes: 1}
)

// measureRate measures how many messages a second fail, wait for one second and come back, with 16 in flight. The time
// is that until the last one is back, with its wait of a second.
func measureRate(r *run) error {
	sides := []session{library, byHand, pair}
	left := 0
	rates, err := claims.Alternate(r.Turns(3), len(sides), func(i int) (float64, error) {
		s := sides[i]
		s.messages = r.Size(20_000, cmp.Or(r.shortMessages, 1_000))
		result, err := r.play(s)
		if err != nil {
			return 0, err
		}
		if s.side == ownSide {
			left = max(left, result.left)
		}
		return float64(s.messages) / result.took.Seconds(), nil
	})
	if err != nil {
		return err
	}
	for i, s := range sides {
		r.note("%s: %s retries a second, the wait included", s, claims.Spread(rates[i], "%.0f"))
	}
	r.ratio("backend_rate", rates[0], rates[1])
	r.ratio("backend_rate_2", rates[2], rates[0])
	r.claim("backend_left", float64(left))
	return nil
}

// lateOf returns the claim about the lateness on a backend: each has a target of its own.
func lateOf(b backend) string { return "backend_late_" + b.name }

// measureLate measures how late messages come back that are due at the same time.
func measureLate(r *run) error {
	sides := []session{library, byHand}
	late, err := claims.Alternate(r.Turns(3), len(sides), func(i int) (float64, error) {
		s := sides[i]
		s.messages = r.Size(5_000, cmp.Or(r.shortMessages, 1_000)/2)
		s.together = time.Duration(r.Size(int(r.lead), int(r.lead/20)))
		result, err := r.play(s)
		if err != nil {
			return 0, err
		}
		if result.behind > 0 && !r.Short {
			return 0, fmt.Errorf("%s: %d messages failed when they were due already, after %v", s, result.behind,
				s.together)
		}
		r.note("%s: %v late in the median, %v at most", s, claims.Percentile(result.late, 0.5).Round(time.Millisecond),
			claims.Percentile(result.late, 1).Round(time.Millisecond))
		return float64(claims.Percentile(result.late, 0.99).Microseconds()) / 1000, nil
	})
	if err != nil {
		return err
	}
	for i, s := range sides {
		r.note("%s: 99 of 100 are at most %s ms late", s, claims.Spread(late[i], "%.0f"))
	}
	toHand := claims.Ratios(late[0], late[1])
	r.note("library to by hand %s", claims.Spread(toHand, "%.2f"))
	r.claim(lateOf(r.backend), claims.Median(late[0]), claims.Digits(claims.Median(toHand))+" of by hand")
	return nil
}

// measureDeath measures how late messages come back that wait while processes end.
func measureDeath(r *run) error {
	for _, s := range []session{{death: killed}, {death: stopped}} {
		name := map[deathName]string{killed: "backend_killed", stopped: "backend_stopped"}[s.death]
		s.side, s.processes = ownSide, 2
		s.messages = r.Size(2_000, 200)
		s.together = time.Duration(r.Size(int(r.lead+deathLead), int(deathLead/2)))
		late, err := claims.Alternate(r.Turns(3), 1, func(int) (float64, error) {
			result, err := r.play(s)
			if err != nil {
				return 0, err
			}
			return float64(claims.Percentile(result.late, 0.99).Microseconds()) / 1000, nil
		})
		if err != nil {
			return err
		}
		r.note("%s: 99 of 100 are at most %s ms late", s, claims.Spread(late[0], "%.0f"))
		r.claim(name, claims.Median(late[0]))
	}
	return nil
}

// deathLead is how much longer the messages wait: a group of Kafka notices a death after 10 seconds.
const deathLead = 15 * time.Second
