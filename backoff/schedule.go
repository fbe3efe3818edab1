package backoff

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// minDelay is the shortest delay: the unit of x-message-ttl on RabbitMQ is one
	// millisecond. See https://www.rabbitmq.com/docs/ttl.
	minDelay = time.Millisecond

	// MaxDelay is the longest delay, ten years of 365 days: the largest
	// x-message-ttl that RabbitMQ accepts. See https://www.rabbitmq.com/docs/ttl.
	MaxDelay = 315_360_000_000 * time.Millisecond

	// maxRetries is the largest number of retries in a schedule. It prevents a
	// mistyped count from allocating gigabytes.
	maxRetries = 1000
)

// These markers replace the delays of a schedule with an invalid factor, so that
// Validate can report the factor. They are negative, so that Cap keeps them.
const (
	factorNaN time.Duration = math.MinInt64 + 1 + iota
	factorInfinite
	factorNotPositive
	factorBelowOne
)

// Schedule is the delay before each retry, the first retry first. Its length is
// the number of retries; the first delivery of a message is not a retry.
//
// A valid schedule has 1 to 1000 delays, in any order, each a whole
// number of milliseconds, from 1 to those of [MaxDelay]. The zero value has no
// retries and is not valid.
type Schedule []time.Duration

// Constant returns a schedule with the same delay before every retry.
//
// Invalid arguments stay in the schedule, and [Schedule.Validate] reports them:
// an invalid delay is kept, a count of 0 or less gives an empty schedule, and a
// count above 1000 gives 1001 delays.
func Constant(delay time.Duration, retries int) Schedule {
	return build(retries, func(int) time.Duration { return delay })
}

// Linear returns a schedule with the delays step, 2*step, 3*step, and so on.
//
// A product that overflows becomes the longest [time.Duration]. [Schedule.Cap]
// can shorten it, and [Schedule.Validate] reports it. Other invalid arguments
// stay in the schedule as with [Constant].
func Linear(step time.Duration, retries int) Schedule {
	return build(retries, func(i int) time.Duration {
		n := time.Duration(i + 1)
		switch {
		case step > math.MaxInt64/n:
			return math.MaxInt64
		case step < math.MinInt64/n:
			return math.MinInt64
		}
		return n * step
	})
}

// Exponential returns a schedule with the delays initial, initial*factor,
// initial*factor*factor, and so on, each rounded up to whole milliseconds. The
// factor can be a fraction, such as 1.5.
//
// A delay below a millisecond is not rounded, so that [Schedule.Validate] reports
// Exponential(100, 2, 5), where the unit is missing. A delay that overflows
// becomes the longest [time.Duration]. [Schedule.Cap] can shorten it, and
// Validate reports it. Validate also reports a factor that is NaN, infinite or
// below 1: name delays that become shorter one by one. Other invalid arguments
// stay in the schedule as with [Constant].
func Exponential(initial time.Duration, factor float64, retries int) Schedule {
	return build(retries, func(i int) time.Duration {
		switch {
		case math.IsNaN(factor):
			return factorNaN
		case math.IsInf(factor, 0):
			return factorInfinite
		case factor <= 0:
			return factorNotPositive
		case factor < 1:
			return factorBelowOne
		case initial <= 0:
			return initial
		}
		return grow(initial, factor, i)
	})
}

// grow returns initial*factor^n. It computes in milliseconds, because a float64
// represents every whole millisecond up to MaxDelay, but not every nanosecond.
func grow(initial time.Duration, factor float64, n int) time.Duration {
	ms := float64(initial/time.Millisecond) + float64(initial%time.Millisecond)/1e6
	ms *= math.Pow(factor, float64(n))

	// Each multiplication may be off by an ulp, and 1.1 has no exact float64.
	// Rounding up must not turn this error into one more millisecond of delay.
	noise := ms * 4 * float64(n+1) * 0x1p-53
	if whole := math.Round(ms); math.Abs(ms-whole) <= noise {
		ms = whole
	}

	switch {
	case ms > float64(math.MaxInt64/time.Millisecond):
		return math.MaxInt64
	case ms < 1:
		return time.Duration(ms * 1e6)
	}
	return time.Duration(math.Ceil(ms)) * time.Millisecond
}

func build(retries int, delay func(i int) time.Duration) Schedule {
	s := make(Schedule, min(max(retries, 0), maxRetries+1))
	for i := range s {
		s[i] = delay(i)
	}
	return s
}

// Cap returns a copy of the schedule in which longer delays are replaced by
// longest. The number of retries stays the same.
func (s Schedule) Cap(longest time.Duration) Schedule {
	capped := slices.Clone(s)
	for i, delay := range capped {
		capped[i] = min(delay, longest)
	}
	return capped
}

// Tiers returns the distinct delays of the schedule, shortest first.
func (s Schedule) Tiers() []Tier {
	delays := slices.Clone(s)
	slices.Sort(delays)
	delays = slices.Compact(delays)

	tiers := make([]Tier, len(delays))
	for i, delay := range delays {
		tiers[i] = Tier(delay)
	}
	return tiers
}

// Validate reports all faults of the schedule in one error. For each it states
// the retry, counted from 1, its delay and the broken bound. Equal faulty delays
// in a row are one fault. The delays after 1000 are not checked; their
// number is the fault.
func (s Schedule) Validate() error {
	var faults []error
	switch {
	case len(s) == 0:
		faults = append(faults, fmt.Errorf("backoff: no retries: want 1 to %d, for example "+
			"backoff.Exponential(time.Second, 5, 4)", maxRetries))
	case len(s) > maxRetries:
		faults = append(faults, fmt.Errorf("backoff: %d retries: want at most %d", len(s), maxRetries))
		s = s[:maxRetries]
	}

	for first := 0; first < len(s); {
		next := first + run(s[first:])
		if err := checkDelay(s[first]); err != nil {
			retries := fmt.Sprintf("retry %d", first+1)
			if next > first+1 {
				retries = fmt.Sprintf("retries %d to %d", first+1, next)
			}
			faults = append(faults, fmt.Errorf("backoff: %s: %w", retries, err))
		}
		first = next
	}
	return errors.Join(faults...)
}

// run returns how many delays at the start of s are equal; s is not empty.
func run(s Schedule) int {
	n := 1
	for n < len(s) && s[n] == s[0] {
		n++
	}
	return n
}

func checkDelay(delay time.Duration) error {
	const factor = "want a finite factor of 1 or more"
	switch {
	case delay == factorNaN:
		return errors.New("the factor is NaN: " + factor)
	case delay == factorInfinite:
		return errors.New("the factor is infinite: " + factor)
	case delay == factorNotPositive:
		return errors.New("the factor is 0 or negative: " + factor)
	case delay == factorBelowOne:
		return errors.New("the factor is below 1: each delay would be shorter than the one before; " + factor + ", or " +
			"name the delays one by one: backoff.Schedule{...}")
	case delay < minDelay:
		hint := ""
		if 0 < delay && delay < time.Microsecond {
			hint = " (a plain number is nanoseconds: is its unit missing?)"
		}
		return fmt.Errorf("delay %v is too short: want at least %v%s", delay, Tier(minDelay), hint)
	case delay > MaxDelay:
		return fmt.Errorf("delay %v is too long: want at most %v", delay, Tier(MaxDelay))
	case delay%time.Millisecond != 0:
		return fmt.Errorf("delay %v is finer than a millisecond: want a multiple of %v", delay, Tier(time.Millisecond))
	}
	return nil
}
